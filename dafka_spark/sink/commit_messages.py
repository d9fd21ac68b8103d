"""What tasks that write tell the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from dafka_core.records import TopicPartition


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Offsets ``start`` up to, not including, ``end``, written to one partition.

    ``attempt`` is the one that has staged them; empty when they are visible already.
    """

    tp: TopicPartition
    start: int
    end: int
    attempt: str = ""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What one task has written, acknowledged, or staged."""

    rows: int
    ranges: tuple[WrittenRange, ...]
