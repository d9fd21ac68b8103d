"""The offset in Spark's checkpoint: the position of a query in each partition.

Positions are exclusive: the offset of the next record to read.  As JSON::

    {"start": {}, "topics": {"flights": {"EB0A...": 1000}}, "version": 4}

Spark compares offsets as strings, so an offset has only one form: sorted keys, none left out.  The
partitions of a long offset, or of one with names that are not plain text, are ``packed``
(``packed_offset``); ``partitions`` and ``records``, the sum of the positions, are for people::

    {"packed": "c-n=d...", "partitions": 1000, "records": 10000, "version": 4}

- ``start`` is the start of the batch that ends here, for each partition of which the previous
  offset does not hold it: all partitions in the first batch (Spark keeps no initial offset of a
  Python source and requests a new one when it repeats that batch), new partitions later, and
  those that lost their next records.
- ``lives``, if the partitions' producers have lives (``dafka_core.model.epochs``), holds the newest
  life at the time of planning.  A store compares it with its own history.
- ``begun`` is the start time of a query that started at ``latest`` or at a time, in microseconds
  since the epoch UTC.
  Partitions that appear later are read from there on.
- ``version`` covers this format and the rule that cuts a batch into tasks
  (``offset_ranges.plan_input_partitions``), as a repeated batch must have the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from dafka_core.errors import ConfigError
from dafka_core.model import packed_offset
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.names import escape, is_plain
from dafka_core.model.packed_offset import PACKED_PARTITIONS, Lives, Positions
from dafka_core.model.records import TopicPartition

VERSION: Final = 4

SHOWN_CHARS: Final = 500  # the part of an unreadable offset that an error shows

T = TypeVar("T")


class BatchRange(NamedTuple):
    """The offsets ``start`` up to, not including, ``end`` that a batch reads of a partition.

    ``life`` is that of its newest producer when the end was planned, ``after`` when the start was,
    if the query has read the records before it.
    """

    topic: str
    partition: str
    start: int
    end: int
    life: EpochId
    after: EpochId


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The positions at the end of a batch, and its start (see the module's documentation)."""

    positions: Positions
    start: Positions = field(default_factory=dict)
    lives: Lives = field(default_factory=dict)
    begun_us: int | None = None

    @classmethod
    def initial(cls, positions: Positions, begun_us: int | None = None) -> SourceOffset:
        """Return the offset before the first batch, as the end of that batch holds it."""
        return cls(positions, positions, begun_us=begun_us)

    @property
    def is_initial(self) -> bool:
        """No batch has ended here yet."""
        return self.start == self.positions

    def since(self, begin: SourceOffset) -> Iterator[BatchRange]:
        """Yield the ranges of the batch that ends here, by partition.

        A start that this offset holds counts more than ``begin``.  Raises ConfigError if the batch
        would go backwards.
        """
        # A new initial offset may have partitions that the repeated batch did not have.
        known = self.positions if begin.is_initial else {**begin.positions, **self.positions}
        for tp in sorted(known):
            start = self.start.get(tp, begin.positions.get(tp, 0))
            end = self.positions.get(tp, 0)
            if start > end:
                raise ConfigError(
                    "checkpointLocation",
                    "/".join(map(escape, tp)),
                    f"holds a batch that starts at offset {start} and ends before it, at {end}: "
                    "its files belong to several queries, or were edited; restore the original "
                    "files, or start the query with a new checkpoint",
                )
            # If this offset holds the start, the query has not read the records before it.
            after = NO_LIFE if tp in self.start else begin.lives.get(tp, NO_LIFE)
            yield BatchRange(*tp, start, end, self.lives.get(tp, NO_LIFE), after)

    def as_json(self) -> dict[str, Any]:
        """Return the offset for Spark; equal offsets give equal JSON."""
        lives = {tp: life for tp, life in self.lives.items() if life != NO_LIFE}
        tree: dict[str, Any] = {} if self.begun_us is None else {"begun": self.begun_us}
        if self._is_packed:
            packed = packed_offset.pack(self.positions, self.start, lives)
            return {**tree, "packed": packed, **self.summary(), "version": VERSION}
        if lives:
            tree["lives"] = nested({tp: list(life) for tp, life in lives.items()})
        topics, start = nested(self.positions), nested(self.start)
        return {**tree, "start": start, "topics": topics, "version": VERSION}

    def summary(self) -> dict[str, Any]:
        """Return the number of partitions and the sum of their positions."""
        return {"partitions": len(self.positions), "records": sum(self.positions.values())}

    def report(self) -> dict[str, Any]:
        """Return the offset for a progress report, or the summary of one that would be packed."""
        return self.summary() if self._is_packed else self.as_json()

    @property
    def _is_packed(self) -> bool:
        # Spark would change bytes that are not UTF-8.
        return len(self.positions) >= PACKED_PARTITIONS or not all(
            is_plain(name) for tp in (*self.positions, *self.start) for name in tp
        )

    @classmethod
    def parse(cls, given: Any) -> SourceOffset:
        """Parse what Spark kept; raise ConfigError if this version cannot read it."""
        try:
            if given["version"] != VERSION:
                raise ValueError(f"it has version {given['version']!r}, not {VERSION}")
            begun_us = _whole(given["begun"]) if "begun" in given else None
            if "packed" in given:
                return cls(*packed_offset.unpack(given["packed"]), begun_us)
            positions, start = flat(given["topics"], _whole), flat(given["start"], _whole)
            lives = flat(given.get("lives", {}), lambda life: EpochId(*map(_whole, life)))
            return cls(positions, start, lives, begun_us)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                "checkpointLocation",
                given if len(repr(given)) <= SHOWN_CHARS else f"{repr(given)[:SHOWN_CHARS]}...",
                "holds an offset that this version of format 'dafka' cannot read "
                f"({type(error).__name__}: {error}); start the query with a new checkpoint",
            ) from None


def nested(positions: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Return the values by topic and partition, with sorted keys."""
    tree: dict[str, dict[str, T]] = {}
    for tp in sorted(positions):
        tree.setdefault(tp.topic, {})[tp.partition] = positions[tp]
    return tree


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is not a whole number")
    return number


def flat(
    tree: Mapping[str, Mapping[str, Any]], read: Callable[[Any], T]
) -> dict[TopicPartition, T]:
    """Parse what ``nested`` returns."""
    return {TopicPartition(t, p): read(tree[t][p]) for t in tree for p in tree[t]}
