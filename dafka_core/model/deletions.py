"""Deletions of topics, as records of internal topic ``__dafka.deletions``.

Each store that deletes a topic notes there how far it had the topic's partitions.  Stores give each
other these records as any others, so one that was away hears of the deletion when it is back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dafka_core.errors import PartitionError
from dafka_core.model.epochs import EpochId
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import PartitionInfo, PartitionLives, TopicPartition

VERSION: Final = 1

MAX_ROWS: Final = 1_000
"""Partitions in one record; fewer where stores take small records only."""

_ROW_BYTES: Final = 2_048
"""More than a row takes, or what is before it, whatever the names."""

_MAX_OFFSET: Final = 2**63


@dataclass(eq=False)
class TopicDeletedError(PartitionError):
    """A producer cannot resume: its topic was deleted, and nothing was written since.

    The records before ``end``, where it would go on, are gone.
    """

    sentence = (
        "the topic was deleted ({when}) with all records before offset {end}: publish them again "
        "from a new address (without option address), or set option resume_deleted to 'ignore' to "
        "go on behind them"
    )
    end: int
    when: str


class Deletion(NamedTuple):
    """The records of a partition before ``before`` were deleted, of ``life`` and older ones."""

    tp: TopicPartition
    before: int
    life: EpochId
    at_us: int
    """When, by the clock of the store that was told to."""

    def reaches(self, lives: PartitionLives) -> int:
        """Up to where a log's records are those that were deleted.

        Those of a newer life were written since, at offsets of which it did not know.
        """
        newer = (epoch.start for epoch in lives.history if epoch.life > self.life)
        return min(self.before, lives.end, *newer)

    def covers(self, other: Deletion) -> bool:
        """Whether the other one, of the same partition, deletes nothing that this one does not."""
        return self.before >= other.before and self.life >= other.life


def packed(infos: Sequence[PartitionInfo], at_us: int, limit_bytes: int) -> Iterator[bytes]:
    """The deletion of a topic's partitions up to where they are held, as records."""
    rows = min(max(limit_bytes // _ROW_BYTES - 1, 1), MAX_ROWS)
    for start in range(0, len(infos), rows):
        part = infos[start : start + rows]
        partitions = [(info.partition, info.end, *info.life) for info in part]
        facts = {"v": VERSION, "topic": part[0].topic, "at_us": at_us, "partitions": partitions}
        yield json.dumps(facts, separators=(",", ":")).encode()  # ASCII, whatever the names


def parsed(content: bytes) -> list[Deletion]:
    """The inverse of ``packed``, of one record.

    Raises:
        ValueError: it is none.
    """
    try:
        facts = json.loads(content)
        topic, at_us = facts["topic"], facts["at_us"]
        if facts["v"] != VERSION or topic == DELETIONS_TOPIC:
            raise ValueError("of another version, or of this topic")
        rows = [
            Deletion(TopicPartition(topic, partition), before, EpochId(*life), at_us)
            for partition, before, *life in facts["partitions"]
        ]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a deletion: {error!r}") from None
    if not all(map(_is_right, rows)):
        raise ValueError("not a deletion: a name or a number cannot be one")
    return rows


def _is_right(deletion: Deletion) -> bool:
    numbers = (deletion.before, *deletion.life, deletion.at_us)
    return (
        all(isinstance(name, str) for name in deletion.tp)
        and all(type(number) is int and number >= 0 for number in numbers)
        and deletion.before <= _MAX_OFFSET
    )
