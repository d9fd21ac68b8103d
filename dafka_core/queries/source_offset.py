"""The offset that Spark keeps in its checkpoint: how far each partition has been read.

Positions are exclusive: the offset of the next record to read.  As JSON::

    {"start": {}, "tasks": 2, "topics": {"flights": {"EB0A...": 1000}}, "version": 1}

Spark compares offsets as strings, so an offset has one form only: keys sorted, and all there.  That
of many partitions, or with a name that is no plain text, is version 2, in which they are ``packed``
(``packed_offset``)::

    {"packed": "c-n=d...", "partitions": 1000, "records": 10000, "tasks": 2, "version": 2}

``partitions`` and ``records``, the sum of the positions, are for people.

``lives`` is there where a partition's producer has lives (``dafka_core.model.epochs``): the
newest one when the position was planned.  Who reads on there is told if a newer one has gone on
without the records before it.

``tasks`` is the rule by which the batch that ends here is cut into tasks: 2, for
``offset_ranges.plan_tasks``.

``begun`` is there where the query began at ``latest``: when, in microseconds since the epoch UTC.
Of partitions that it finds later it reads what was written since (``later_partitions``).  Such an
offset is version 3, packed or not.

``start`` says where the batch that ends here begins, for every partition of which the offset
before does not say it: all of them in the first batch (Spark keeps no initial offset of a Python
source; it asks again when it runs that batch again, and then "latest" lies elsewhere), new
partitions later, and those whose next records were found lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from dafka_core.errors import ConfigError
from dafka_core.model import packed_offset
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.names import escape, is_plain
from dafka_core.model.packed_offset import PACKED_PARTITIONS, Lives, Positions
from dafka_core.model.records import TopicPartition

VERSION: Final = 1
PACKED_VERSION: Final = 2
BEGUN_VERSION: Final = 3
"""An offset is of the lowest version that can say it; programs that know only lower ones refuse it.
"""
VERSIONS: Final = (VERSION, PACKED_VERSION, BEGUN_VERSION)

TASKS: Final = 2
"""The rule by which batches are cut into tasks.  Another rule needs another number, as a batch that
is run again keeps its tasks."""

SHOWN_CHARS: Final = 500
"""Of an offset that cannot be read: what an error says of it."""

T = TypeVar("T")


class BatchRange(NamedTuple):
    """What a batch has of a partition: offsets ``start`` up to, not including, ``end``.

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
    """Positions at the end of a batch, and where it began (see the module's documentation)."""

    positions: Positions
    start: Positions = field(default_factory=dict)
    lives: Lives = field(default_factory=dict)
    begun_us: int | None = None

    @classmethod
    def initial(cls, positions: Positions, begun_us: int | None = None) -> SourceOffset:
        """The offset before the first batch, which hands its positions on to that batch's end."""
        return cls(positions, positions, begun_us=begun_us)

    @property
    def is_initial(self) -> bool:
        """Whether no batch has ended here yet."""
        return self.start == self.positions

    def since(self, begin: SourceOffset) -> Iterator[BatchRange]:
        """The ranges of the batch that ends here, by partition.

        Where this offset says where the batch began, that counts and not ``begin``.

        Raises:
            ConfigError: the batch would go backwards.
        """
        for tp in sorted({*self.positions, *begin.positions}):
            # A new initial offset may have partitions that the batch did not have.
            if tp not in self.positions and begin.is_initial:
                continue
            start = self.start.get(tp, begin.positions.get(tp, 0))
            end = self.positions.get(tp, 0)
            if start > end:
                raise ConfigError(
                    "checkpointLocation",
                    "/".join(map(escape, tp)),
                    f"holds a batch that starts at offset {start} and ends before it, at {end}: "
                    "its files are not of one query, or have been edited; restore the files "
                    "that were there, or start the query with a new checkpoint",
                )
            life, after = self.lives.get(tp, NO_LIFE), begin.lives.get(tp, NO_LIFE)
            if tp in self.start:  # nothing before it was read
                after = NO_LIFE
            yield BatchRange(*tp, start, end, life, after)

    def as_json(self) -> dict[str, Any]:
        """What Spark is given; equal offsets give equal JSON."""
        lives = {tp: life for tp, life in self.lives.items() if life != NO_LIFE}
        if self._is_packed:
            # A number that is too large for it comes from a store of which nothing else is right.
            with contextlib.suppress(OverflowError):
                packed = packed_offset.pack(self.positions, self.start, lives)
                tree = {"packed": packed, **self.summary(), "tasks": TASKS}
                return self._versioned(tree, PACKED_VERSION)
        tree = {
            "lives": _nested({tp: list(life) for tp, life in lives.items()}),
            "start": _nested(self.start),
            "tasks": TASKS,
            "topics": _nested(self.positions),
        }
        if not lives:
            del tree["lives"]
        return self._versioned(tree, VERSION)

    def _versioned(self, tree: dict[str, Any], version: int) -> dict[str, Any]:
        if self.begun_us is None:
            return {**tree, "version": version}
        return {"begun": self.begun_us, **tree, "version": BEGUN_VERSION}

    def summary(self) -> dict[str, Any]:
        """How many partitions there are, and the sum of their positions."""
        return {"partitions": len(self.positions), "records": sum(self.positions.values())}

    def report(self) -> dict[str, Any]:
        """What a progress report says: the offset, or the summary of one that would be packed."""
        return self.summary() if self._is_packed else self.as_json()

    @property
    def _is_packed(self) -> bool:
        # Spark would write octets that are not UTF-8 otherwise than it was given them.
        return len(self.positions) >= PACKED_PARTITIONS or not all(
            is_plain(name) for tp in (*self.positions, *self.start) for name in tp
        )

    @classmethod
    def parse(cls, given: Any) -> SourceOffset:
        """The offset from what Spark kept.

        Raises:
            ConfigError: the checkpoint is not this source's, or was written by another version.
        """
        try:
            if given["version"] not in VERSIONS:
                raise ValueError(f"version {given['version']!r} is none of {VERSIONS}")
            begun_us = _whole(given["begun"]) if given["version"] == BEGUN_VERSION else None
            if (tasks := given.get("tasks")) != TASKS:
                raise ValueError(f"tasks {tasks!r} is no rule that this version knows")
            if given["version"] == PACKED_VERSION or "packed" in given:
                return cls(*packed_offset.unpack(given["packed"]), begun_us)
            positions, start = _flat(given["topics"], _whole), _flat(given["start"], _whole)
            return cls(positions, start, _flat(given.get("lives", {}), _life), begun_us)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                "checkpointLocation",
                given if len(repr(given)) <= SHOWN_CHARS else f"{repr(given)[:SHOWN_CHARS]}...",
                "holds an offset that this version of format 'dafka' cannot read "
                f"({type(error).__name__}: {error}); start the query with a new checkpoint",
            ) from None


def _nested(positions: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Positions as ``{topic: {partition: offset}}`` with sorted keys."""
    tree: dict[str, dict[str, T]] = {}
    for tp in sorted(positions):
        tree.setdefault(tp.topic, {})[tp.partition] = positions[tp]
    return tree


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is not a whole number")
    return number


def _life(numbers: Iterable[object]) -> EpochId:
    return EpochId(*map(_whole, numbers))


def _flat(
    tree: Mapping[str, Mapping[str, Any]], read: Callable[[Any], T]
) -> dict[TopicPartition, T]:
    """The inverse of ``_nested``; raises ``ValueError`` for an offset that is none."""
    return {TopicPartition(t, p): read(tree[t][p]) for t in tree for p in tree[t]}
