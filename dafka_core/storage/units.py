"""Doing what a log is told (``staging.py``), inside one write transaction.

The rule of records that come from another store, which sends units that are committed: a run
that ends with its unit is appended, and one that does not is staged, as a tail whose attempt is
``REPLICA``, until the run comes that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dafka_core.errors import DafkaError, FencedError, OffsetConflictError, UnitExistsError
from dafka_core.records import NO_NUMBER, CommitUnit, Run, Unit, UnitInfo
from dafka_core.storage import keys
from dafka_core.storage.environment import Environment
from dafka_core.storage.keys import Committed, Row, Tail
from dafka_core.storage.notes import Noted
from dafka_core.storage.staging import (
    REPLICA,
    Commit,
    Discard,
    Entry,
    Mark,
    Staged,
    attempt_octets,
    attempt_text,
)
from dafka_core.storage.tables import row_of, tail_key, tails
from dafka_core.storage.writing import (
    Written,
    WrongOffsetError,
    finished,
    new_row,
    put_row,
    write_run,
)

if TYPE_CHECKING:
    from dafka_core.storage.environment import Transaction

MAX_NUMBER = 2**63 - 1
"""Of units; the row has eight octets for it, and Spark's batches count in such numbers."""


def unit_info(row: Row | None) -> UnitInfo:
    """What a row says of units."""
    if row is None:
        return UnitInfo(0, 0, "", None)
    owned = row.tail or row.committed
    attempt = attempt_text(owned.attempt) if owned else ""
    return UnitInfo(row.end, row.tail.end if row.tail else row.end, attempt, row.marker)


def discard_stale(
    env: Environment, transaction: Transaction, before_us: int, *, replicas: bool
) -> int:
    """Gives up all tails that nobody went on with since a time; how many."""
    writes = Writes(env, transaction, 0, bytearray())
    count = 0
    for topic, partition in tails(env, transaction):
        row = row_of(env, transaction, topic, partition)
        assert row is not None
        assert row.tail is not None
        if row.tail.attempt == REPLICA and not replicas:
            continue
        if row.tail.last_timestamp_us < before_us:
            writes.apply(Discard(topic, partition, attempt_text(row.tail.attempt)))
            count += 1
    return count


class Writes:
    """Entries that are written in one transaction, in order.

    ``written`` are the blocks that were finished by them.
    """

    def __init__(
        self, env: Environment, transaction: Transaction, now_us: int, buffer: bytearray
    ) -> None:
        self._env = env
        self._transaction = transaction
        self._now_us = now_us
        self._buffer = buffer
        self.written: list[Written] = []

    def apply(self, entry: Entry) -> DafkaError | None:
        """Does what an entry says; or nothing, and says why.

        Raises:
            WrongOffsetError: a run without a unit does not begin at its partition's end.
            ValueError: what can be no entry.
            StoreError: a block that is to be extended is damaged.
        """
        match entry:
            case Run():
                if entry.unit is not None:
                    return self._replicate(entry, entry.unit)
                self._append(entry)
            case Staged():
                return self._stage(entry)
            case Commit():
                return self._commit(entry.units)
            case Discard():
                self._discard(entry)
            case Mark():
                return self._mark(entry)
        return None

    # -- runs ------------------------------------------------------------------------------------

    def _append(self, run: Run) -> None:
        row = self._row(run.topic, run.partition) or new_row(self._env, self._transaction)
        if row.tail is not None:
            row = self._settled(run, row)
        if run.offset != row.end:
            raise WrongOffsetError(run.topic, run.partition, run.offset, row.end)
        self._show(run, row)

    def _settled(self, run: Run, row: Row) -> Row:
        """A row without its tail, which a run without a unit shows to be whole, or void."""
        tail = row.tail
        assert tail is not None
        if run.offset == row.end:
            self._delete_tail(row)
            return row._replace(tail=None)
        if run.offset != tail.end or tail.attempt != REPLICA:
            raise WrongOffsetError(run.topic, run.partition, run.offset, row.end)
        # The other store sends units older than its marker as what they are by now: records.
        return self._visible(row, _marker(row, tail.unit) if run.end >= tail.unit.end else None)

    def _replicate(self, run: Run, unit: Unit) -> DafkaError | None:
        _check_unit(unit)
        if run.offset < unit.start or run.end > unit.end:
            raise ValueError(
                f"topic {run.topic!r}, partition {run.partition}: records {run.offset} to "
                f"{run.end} are not all of unit {unit.number}, which has {unit.start} to {unit.end}"
            )
        row = self._row(run.topic, run.partition)
        end, tail = (row.end, row.tail) if row else (0, None)
        goes_on = tail is not None and (tail.end, tail.attempt, tail.unit) == (
            run.offset,
            REPLICA,
            unit,
        )
        if not goes_on and run.offset != end:
            return OffsetConflictError(run.topic, run.partition, run.offset, end)
        row = row or new_row(self._env, self._transaction)
        if row.tail is not None and not goes_on:
            self._delete_tail(row)
            row = row._replace(tail=None)
        if run.end < unit.end:
            self._put_tail(run, row, REPLICA, unit)
            return None
        row = self._visible(row, None) if goes_on else row
        self._show(run, row._replace(marker=_marker(row, unit)))
        return None

    def _show(self, run: Run, row: Row) -> None:
        """Appends a run to what readers see; there is no tail."""
        stamp_us = max(self._now_us, row.last_timestamp_us)
        blocks = write_run(self._env, self._transaction, run, row, 0, stamp_us, self._buffer)
        units = None, row.committed, row.marker
        self._put(run.topic, run.partition, Row(row.id, row.earliest, run.end, stamp_us, *units))
        self.written += finished(row, blocks)

    # -- attempts --------------------------------------------------------------------------------

    def _stage(self, entry: Staged) -> DafkaError | None:
        run, attempt = entry.run, attempt_octets(entry.attempt)
        _check_number(entry.number)
        row = self._row(run.topic, run.partition)
        end, tail, marker = (row.end, row.tail, row.marker) if row else (0, None, None)
        if marker is not None and NO_NUMBER < entry.number <= marker.number:
            return UnitExistsError(run.topic, run.partition, marker)
        own = tail is not None and tail.attempt == attempt
        if tail is not None and not own and NO_NUMBER < entry.number < tail.unit.number:
            return FencedError(run.topic, run.partition, entry.attempt)
        goes_on = tail is not None and own and tail.end == run.offset
        if not goes_on and run.offset != end:
            if own and tail is not None:
                return OffsetConflictError(run.topic, run.partition, run.offset, tail.end)
            if run.offset > end:  # where only a tail can have been that is no more
                return FencedError(run.topic, run.partition, entry.attempt)
            return OffsetConflictError(run.topic, run.partition, run.offset, end)
        row = row or new_row(self._env, self._transaction)
        if row.tail is not None and not goes_on:
            self._delete_tail(row)
            row = row._replace(tail=None)
        self._put_tail(run, row, attempt, Unit(entry.number, row.end, 0))
        return None

    def _commit(self, units: Sequence[CommitUnit]) -> DafkaError | None:
        before: dict[tuple[str, str], Row | None] = {}
        after: dict[tuple[str, str], Row] = {}
        for unit in units:
            name = unit.topic, unit.partition
            if name not in before:
                before[name] = self._row(*name)
            committed = _committed(unit, after.get(name, before[name]))
            if isinstance(committed, DafkaError):
                return committed
            after[name] = committed
        for name, row in after.items():
            found = before[name]
            if found is not None and found != row:
                self._note_tail(found)
                self._unlist_tail(found)
                self._put(*name, row)
        return None

    def _discard(self, entry: Discard) -> None:
        attempt = attempt_octets(entry.attempt) if entry.attempt else REPLICA
        row = self._row(entry.topic, entry.partition)
        if row is not None and row.tail is not None and row.tail.attempt == attempt:
            self._without_tail(entry.topic, entry.partition, row)

    def _mark(self, entry: Mark) -> DafkaError | None:
        topic, partition, unit = entry
        _check_unit(unit)
        row = self._row(topic, partition)
        end = row.end if row else 0
        if row is None or end < unit.end:
            return OffsetConflictError(topic, partition, unit.end, end)
        marker = row.marker
        if marker is not None and marker.number == unit.number and marker != unit:
            return UnitExistsError(topic, partition, marker)
        if _marker(row, unit) != marker:
            self._put(topic, partition, row._replace(marker=unit))
        return None

    # -- tails -----------------------------------------------------------------------------------

    def _put_tail(self, run: Run, row: Row, attempt: bytes, unit: Unit) -> None:
        """Stages a run behind the row's tail, or as a new one."""
        tail_us = row.tail.last_timestamp_us if row.tail else keys.NEVER_US
        stamp_us = max(self._now_us, row.last_timestamp_us, tail_us)
        write_run(self._env, self._transaction, run, row, row.end, stamp_us, self._buffer)
        if row.tail is None:
            name = keys.partition_key(run.topic, run.partition)
            self._transaction.put(tail_key(row.id), name, db=self._env.meta)
        tail = Tail(run.end, stamp_us, attempt, unit)
        self._put(run.topic, run.partition, row._replace(tail=tail))

    def _visible(self, row: Row, marker: Unit | None) -> Row:
        """The row with its tail as a part of what readers see; it is not written yet."""
        tail = row.tail
        assert tail is not None
        self._note_tail(row)
        self._unlist_tail(row)
        return row._replace(
            end=tail.end,
            last_timestamp_us=tail.last_timestamp_us,
            tail=None,
            marker=marker or row.marker,
        )

    def _without_tail(self, topic: str, partition: str, row: Row) -> None:
        self._delete_tail(row)
        if row.end:
            self._put(topic, partition, row._replace(tail=None))
        else:
            name = keys.partition_key(topic, partition)
            self._transaction.delete(name, db=self._env.partitions)

    def _delete_tail(self, row: Row) -> None:
        for key, _ in self._tail_blocks(row):
            self._transaction.delete(key, db=self._env.blocks)
        self._unlist_tail(row)

    def _unlist_tail(self, row: Row) -> None:
        self._transaction.delete(tail_key(row.id), db=self._env.meta)

    def _note_tail(self, row: Row) -> None:
        """Says that the blocks of a tail, which readers see from now on, may be merged."""
        assert row.tail is not None
        found = self._tail_blocks(row)
        offsets = [keys.BLOCK.unpack(key)[1] for key, _ in found]
        blocks = [
            Noted(first, end - first, size_bytes)
            for first, end, (_, size_bytes) in zip(
                offsets, [*offsets[1:], row.tail.end], found, strict=True
            )
        ]
        cursor = self._transaction.cursor(self._env.blocks)
        last = keys.seek_block(cursor, row.id, row.end - 1) if row.end > row.earliest else None
        if last is not None:
            blocks.insert(0, Noted(last, row.end - last, len(cursor.value())))
        self.written += finished(row, blocks)

    def _tail_blocks(self, row: Row) -> list[tuple[bytes, int]]:
        """The keys and the sizes of what is staged."""
        found = []
        cursor = self._transaction.cursor(self._env.blocks)
        cursor.set_range(keys.BLOCK.pack(row.id, row.end))
        for key, packed in cursor.iternext():
            if keys.BLOCK.unpack(key)[0] != row.id:
                break
            found.append((bytes(key), len(packed)))
        return found

    # -- rows ------------------------------------------------------------------------------------

    def _row(self, topic: str, partition: str) -> Row | None:
        return row_of(self._env, self._transaction, topic, partition)

    def _put(self, topic: str, partition: str, row: Row) -> None:
        put_row(self._env, self._transaction, topic, partition, row)


def _committed(unit: CommitUnit, row: Row | None) -> Row | DafkaError:
    """A partition's row when a unit is committed; or why it cannot be."""
    attempt = attempt_octets(unit.attempt)
    _check_number(unit.number)
    committed = Committed(attempt, unit.start, unit.end)
    if row is not None and row.committed == committed:
        return row
    tail = row.tail if row else None
    if row is None or tail is None or tail.attempt != attempt:
        return FencedError(unit.topic, unit.partition, unit.attempt)
    if unit.start != row.end:
        return OffsetConflictError(unit.topic, unit.partition, unit.start, row.end)
    if unit.end != tail.end:
        return OffsetConflictError(unit.topic, unit.partition, unit.end, tail.end)
    marker = row.marker
    if unit.number != NO_NUMBER:
        if marker is not None and unit.number <= marker.number:
            return UnitExistsError(unit.topic, unit.partition, marker)
        marker = Unit(unit.number, unit.start, unit.end)
    return row._replace(
        end=tail.end,
        last_timestamp_us=tail.last_timestamp_us,
        tail=None,
        committed=committed,
        marker=marker,
    )


def _marker(row: Row, unit: Unit) -> Unit | None:
    """A partition's marker when a unit is there: the newer of two."""
    if unit.number == NO_NUMBER or (row.marker and row.marker.number >= unit.number):
        return row.marker
    return unit


def _check_unit(unit: Unit) -> None:
    _check_number(unit.number)
    if not 0 <= unit.start < unit.end < keys.LAST_OFFSET:
        raise ValueError(f"a unit cannot have the records from {unit.start} to {unit.end}")


def _check_number(number: int) -> None:
    if not NO_NUMBER <= number <= MAX_NUMBER:
        raise ValueError(f"a unit's number is {NO_NUMBER} to {MAX_NUMBER}, not {number}")
