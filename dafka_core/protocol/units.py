"""Units on their way through the mesh: which runs carry one, and publishing what was committed.

A store that gets all of a unit makes it visible at once and leaves its marker, so every run of
one says which it belongs to.  That is known of units that are published when they are committed,
and of a partition's last one; older ones are records like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from dafka_core.errors import ProtocolError
from dafka_core.records import Run, Unit

UNIT: Final = Struct(">qQQ")
"""A unit on the wire: number, start and end."""

NO_UNIT: Final = (0, 0, 0)
"""Of records that belong to none.  No unit ends at 0."""

RUN_TAIL: Final = Struct(">QIqQQ")
"""What follows the names in the header of packed records: sequence, count and unit."""

MAX_PUBLISHED_UNITS: Final = 64
"""Units of one partition that wait to be published and are still told apart: their writer commits
faster than the mesh takes them.  The records of older ones are sent without."""


def unit_of(numbers: tuple[int, ...]) -> Unit | None:
    """The unit that was unpacked; nothing of it is checked."""
    return None if numbers == NO_UNIT else Unit._make(numbers)


def pack_run_tail(sequence: int, count: int, unit: Unit | None) -> bytes:
    """What follows the names in the header of packed records."""
    return RUN_TAIL.pack(sequence, count, *(unit or NO_UNIT))


def unpack_run_tail(tail: bytes) -> tuple[int, int, Unit | None]:
    """Sequence, count and unit of packed records; nothing of it is checked but the length.

    Raises:
        ProtocolError: it has another length.
    """
    if len(tail) != RUN_TAIL.size:
        raise ProtocolError("a run's header ends within a field")
    sequence, count, *unit = RUN_TAIL.unpack(tail)
    return sequence, count, unit_of(tuple(unit))


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the records from ``start`` to ``end`` (exclusive), which were committed here."""

    topic: str
    partition: str
    start: int
    end: int
    units: tuple[Unit, ...]
    """Ascending, without overlap; records between them belong to none."""

    def joined(self, newer: Publish) -> Publish:
        """What is to be published when something more has been committed.

        If that does not follow, what is between came from elsewhere and was published there;
        whoever misses what is left of this asks for it.
        """
        if newer.start != self.end:
            return newer
        units = (self.units + newer.units)[-MAX_PUBLISHED_UNITS:]
        return Publish(self.topic, self.partition, self.start, newer.end, units)

    def rest(self, start: int) -> Publish:
        """What is left of it from ``start`` on."""
        units = tuple(unit for unit in self.units if unit.end > start)
        return Publish(self.topic, self.partition, start, self.end, units)


def with_units(run: Run, units: Sequence[Unit]) -> list[Run]:
    """The run, cut where units (ascending, without overlap) begin and end; each part with its."""
    parts: list[Run] = []
    at = run.offset
    for unit in units:
        start, end = max(unit.start, at), min(unit.end, run.end)
        if start >= end:
            continue
        if at < start:
            parts.append(_part(run, at, start, None))
        parts.append(_part(run, start, end, unit))
        at = end
    if at < run.end:
        parts.append(_part(run, at, run.end, None))
    return parts


def _part(run: Run, start: int, end: int, unit: Unit | None) -> Run:
    values = run.values
    if len(values) != end - start:
        values = values[start - run.offset : end - run.offset]
    return Run(run.topic, run.partition, start, values, unit)


def going_on(run: Run, staged: Unit | None) -> tuple[Run, Unit | None]:
    """A run that comes next in a partition, after a part of the unit ``staged`` if there is one.

    Returns the run as it is to be stored, and the unit of which a part is there then.  Whoever
    sends something else than what is missing of the unit knows it as whole, and older.
    """
    if staged is not None and run.unit != staged:
        run = Run(run.topic, run.partition, run.offset, run.values)
    unit = run.unit
    return run, unit if unit is not None and run.end < unit.end else None
