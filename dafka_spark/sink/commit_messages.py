"""What the driver and the tasks that write tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition


class PickedStore(NamedTuple):
    """The store that the driver has picked, where all tasks of a job stage their rows.

    ``locations`` are those of all stores, so that the tasks need not look for them.
    """

    store: str
    locations: tuple[StoreLocation, ...]


NOT_PICKED: Final = PickedStore("", ())
"""Each task looks for stores itself, and commits what it writes."""


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Offsets ``start`` up to, not including, ``end``, written to one partition.

    ``attempt`` is the one that has staged them; empty when they are visible already.  ``digest`` is
    the rows' (``RowDigest``), where the query is audited.
    """

    tp: TopicPartition
    start: int
    end: int
    attempt: str = ""
    digest: str = ""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What one task has written, acknowledged, or staged; and where the stores were.

    ``picked`` is the store where it was staged, ``query`` the id of the query.
    """

    rows: int
    ranges: tuple[WrittenRange, ...]
    stores: tuple[StoreLocation, ...] = field(default=(), compare=False)
    picked: str = field(default="", compare=False)
    query: str = field(default="", compare=False)
