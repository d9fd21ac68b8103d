"""A store's disk: what is synced survives a crash, and nothing else does.

As LMDB has it: a group of batches is on disk whole or not at all, and readers see it only then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest

import numpy as np

from dafka_core.errors import DafkaError, FencedError, OffsetConflictError
from dafka_core.model import records, timestamps
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, last_life, prefix, with_epoch
from dafka_core.model.log_entries import (
    Commit,
    Discard,
    Forget,
    LogEntry,
    Promise,
    RestartPartition,
    SetAside,
    SetTransaction,
    Stage,
    StoreSeen,
    TransactionExistsError,
)
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
    split_by_epoch,
)
from dafka_core.nodes.store_loop import Outcomes
from tests.simulation.checkers import Checkers
from tests.simulation.world import World

BLOCK_COUNT = 50  # records in one batch that a read hands out


@dataclass
class StagedRecords:
    """Staged records behind a partition's end, and their attempt."""

    attempt: str
    transaction: Transaction
    values: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


@dataclass
class Partition:
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # the timestamp of each, in microseconds
    earliest: int = 0  # earlier records are trimmed
    tail: StagedRecords | None = None
    last_transaction: Transaction | None = None
    committed: tuple[str, int, int] | None = None
    history: History = ()
    promised: EpochId = NO_LIFE

    @property
    def end(self) -> int:
        """Return the end of the visible records."""
        return len(self.records)

    @property
    def tail_end(self) -> int:
        """Return the end of the staged records."""
        return self.end + (len(self.tail.values) if self.tail else 0)

    @property
    def last_version(self) -> int:
        return self.last_transaction.version if self.last_transaction else NO_VERSION

    def mark(self, transaction: Transaction) -> None:
        """Keeps the newer one."""
        if transaction.version > self.last_version:
            self.last_transaction = transaction


class Disk:
    """A store's disk: ``Log`` as far as a store's loop uses it.

    What an entry does is written down in ``log_entries.py``; here it is done in the plainest
    way.
    """

    def __init__(
        self, world: World, checkers: Checkers, name: str, now_us: Callable[[], int]
    ) -> None:
        self.name = name
        self.now_us = now_us
        self._world = world
        self._checkers = checkers
        self.met: dict[str, StoreSeen] = {}
        self.set_aside: set[TopicPartition] = set()
        self.held: dict[TopicPartition, Partition] = {}

    # -- writing ---------------------------------------------------------------------------------

    def write(self, entries: Sequence[LogEntry]) -> list[DafkaError | None]:
        """Puts a group on disk, synced; see ``Log.write``."""
        return [self._apply(entry) for entry in entries]

    def _apply(self, entry: LogEntry) -> DafkaError | None:
        match entry:
            case RecordBatch():
                return self._append(entry)
            case Stage():
                return self._stage(entry)
            case Commit():
                return self._commit(entry)
            case Discard(tp, attempt):
                held = self._partition(tp)
                if held.tail is not None and held.tail.attempt == attempt:
                    held.tail = None
            case Promise(tp, life):
                self._partition(tp).promised = max(self._partition(tp).promised, life)
            case StoreSeen(store):
                self.met[store] = entry
            case Forget(store):
                self.met.pop(store, None)
            case SetAside(tp, start):
                self._set_aside(tp, start)
            case RestartPartition():
                self._go_on(entry)
            case SetTransaction(tp, transaction):
                return self._mark(tp, transaction)
        return None

    def _set_aside(self, tp: TopicPartition, start: int) -> None:
        held = self._partition(tp)
        held.tail = None
        if start >= held.end:
            return
        self.set_aside.add(tp)
        del held.records[start:], held.times[start:]
        held.earliest = min(held.earliest, start)
        held.history = prefix(held.history, start)
        last, committed = held.last_transaction, held.committed
        held.last_transaction = last if last and last.end <= start else None
        held.committed = committed if committed and committed[2] <= start else None
        self._checkers.on_set_aside(self.name, tp, start)

    def _go_on(self, entry: RestartPartition) -> None:
        """Continue after records that no store has."""
        (tp, start, history, transaction), held = entry, self._partition(entry.tp)
        held.tail = None
        if start <= held.end:
            return
        others = [disk.held[tp] for disk in self._checkers.disks.values() if tp in disk.held]
        if any(other.earliest <= held.end < other.end for other in others):
            self._world.fail(self.name, f"goes on at {start} of {tp}, and another one has more")
        self._world.fault("goes on behind what nobody has", self.name, f"{tp} at {start}")
        most = max(others, key=lambda other: other.end)  # what was once safe is looked at
        held.records = (most.records + [b""] * start)[:start]
        held.times = (most.times + [0] * start)[:start]
        committed = held.committed
        held.committed = committed if committed and committed[2] <= held.earliest else None
        held.earliest, held.history, held.last_transaction = start, history, transaction

    def _begin_epoch(self, held: Partition, epoch: Epoch | None) -> None:
        if epoch is not None and epoch not in held.history[-1:]:
            held.history = with_epoch(prefix(held.history, held.end), epoch)

    def _append(self, batch: RecordBatch) -> DafkaError | None:
        held, transaction = self._partition(batch.tp), batch.transaction
        tail = held.tail
        whole = transaction is None or batch.end == transaction.end
        goes_on = tail is not None and tail.attempt == "" and batch.offset == held.tail_end
        if transaction is not None and goes_on and tail is not None:
            goes_on = tail.transaction == transaction
        if not goes_on and batch.offset != held.end:
            if transaction is None:
                self._world.fail(self.name, f"appends {batch.offset} to an end of {held.end}")
            return OffsetConflictError(*batch.tp, batch.offset, held.end)
        self._begin_epoch(held, batch.epoch)
        shown, times = list(batch.values), self._times(batch)
        if goes_on and tail is not None:
            shown, times = tail.values + shown, tail.times + times
        if not whole and transaction is not None:
            held.tail = StagedRecords("", transaction, shown, times)
            return None
        if goes_on and tail is not None and batch.end >= tail.transaction.end:
            held.mark(tail.transaction)
        self._show(batch.tp, held, shown, times)
        if transaction is not None:
            held.mark(transaction)
        return None

    def latest_us(self) -> int:
        """The latest timestamp that is taken."""
        return self.now_us() + timestamps.MAX_AHEAD_US

    def _times(self, batch: RecordBatch) -> list[int]:
        runs = records.kept_times(batch.times, batch.count, self.now_us(), self.latest_us())
        return [time_us for count, time_us in runs.tolist() for _ in range(count)]

    def _show(
        self, tp: TopicPartition, held: Partition, values: list[bytes], times: list[int]
    ) -> None:
        self._checkers.on_disk(self.name, RecordBatch.of(tp, held.end, list(values)))
        self._checkers.on_stamped(self.name, tp, held.end, times, last_life(held.history))
        held.tail = None
        held.records.extend(values)
        held.times.extend(times)

    def _stage(self, staged: Stage) -> DafkaError | None:
        batch, attempt, version = staged
        held = self._partition(batch.tp)
        tp, tail = batch.tp, held.tail
        if held.last_transaction and NO_VERSION < version <= held.last_version:
            return TransactionExistsError(*tp, held.last_transaction)
        own = tail is not None and tail.attempt == attempt
        if tail is not None and not own and NO_VERSION < version < tail.transaction.version:
            return FencedError(*tp, attempt)
        if tail is not None and own and batch.offset == held.tail_end:
            tail.times.extend(self._times(batch))
            tail.values.extend(batch.values)
            tail.transaction = Transaction(version, held.end, 0)
            return None
        if batch.offset != held.end:
            if own:
                return OffsetConflictError(*tp, batch.offset, held.tail_end)
            if batch.offset > held.end:
                return FencedError(*tp, attempt)
            return OffsetConflictError(*tp, batch.offset, held.end)
        times = self._times(batch)
        transaction = Transaction(version, held.end, 0)
        held.tail = StagedRecords(attempt, transaction, list(batch.values), times)
        return None

    def _commit(self, commit: Commit) -> DafkaError | None:
        transactions = commit.transactions
        for transaction in transactions:
            refused = self._refused(transaction)
            if refused is not None:
                return refused
        for transaction, epoch in zip_longest(transactions, commit.epochs):
            tp, attempt = transaction.tp, transaction.attempt
            start, end = transaction.start, transaction.end
            held = self._partition(tp)
            if held.committed == (attempt, start, end) or held.tail is None:
                continue
            self._checkers.on_committed(self.name, transaction, held.tail.values)
            self._begin_epoch(held, epoch)
            self._show(tp, held, held.tail.values, held.tail.times)
            held.committed = (attempt, start, end)
            held.mark(transaction.transaction)
        return None

    def _refused(self, transaction: StagedTransaction) -> DafkaError | None:
        tp, attempt, version = transaction.tp, transaction.attempt, transaction.version
        start, end = transaction.start, transaction.end
        held = self._partition(tp)
        if held.committed == (attempt, start, end):
            return None
        if held.tail is None or held.tail.attempt != attempt:
            return FencedError(*tp, attempt)
        if start != held.end:
            return OffsetConflictError(*tp, start, held.end)
        if end != held.tail_end:
            return OffsetConflictError(*tp, end, held.tail_end)
        if held.last_transaction and NO_VERSION < version <= held.last_version:
            return TransactionExistsError(*tp, held.last_transaction)
        return None

    def _mark(self, tp: TopicPartition, transaction: Transaction) -> DafkaError | None:
        held = self._partition(tp)
        if held.end < transaction.end:
            return OffsetConflictError(*tp, transaction.end, held.end)
        last = held.last_transaction
        if last is not None and last.version == transaction.version and last != transaction:
            return TransactionExistsError(*tp, last)
        held.mark(transaction)
        return None

    def _partition(self, tp: TopicPartition) -> Partition:
        return self.held.setdefault(tp, Partition())

    # -- reading ---------------------------------------------------------------------------------

    def end(self, tp: TopicPartition) -> int:
        return (self.held.get(tp) or Partition()).end

    def records(self, tp: TopicPartition, end: int) -> list[bytes]:
        """Those before ``end``."""
        return (self.held.get(tp) or Partition()).records[:end]

    def lives(self, tp: TopicPartition) -> PartitionLives:
        held = self.held.get(tp) or Partition()
        history = prefix(held.history, held.end)
        return PartitionLives(held.end, history, held.promised, held.last_transaction)

    def transaction_state(self, tp: TopicPartition) -> TransactionState:
        held = self.held.get(tp)
        if held is None:
            return TransactionState(0, 0, "", None)
        attempt = held.committed[0] if held.committed else ""
        if held.tail is not None:
            attempt = held.tail.attempt
        return TransactionState(held.end, held.tail_end, attempt, held.last_transaction)

    def earliest(self, tp: TopicPartition) -> int:
        """Return the earliest offset; the partition's end without records."""
        return (self.held.get(tp) or Partition()).earliest

    def trim(self, tp: TopicPartition, before: int) -> None:
        held = self._partition(tp)
        held.earliest = max(held.earliest, before)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: held.end for tp, held in self.held.items() if held.end}

    def partitions(self, topic: str | None = None) -> list[PartitionInfo]:
        return [
            PartitionInfo(name, partition, held.earliest, held.end, last_life(held.history))
            for (name, partition), held in sorted(self.held.items(), key=_name)
            if topic in (None, name) and held.end
        ]

    def partitions_after(
        self, topic: str | None, after: TopicPartition | None, most: int
    ) -> list[PartitionInfo]:
        infos = self.partitions(topic)
        return [info for info in infos if after is None or info.tp > after][:most]

    def read(
        self, tp: TopicPartition, start: int, end: int, *, max_records: int, max_bytes: int
    ) -> list[RecordBatch]:
        held = self.held.get(tp) or Partition()
        start, end = max(start, held.earliest), min(end, len(held.records))
        batches: list[RecordBatch] = []
        while start < end and max_records > 0:
            values: list[bytes] = []
            for value in held.records[start : min(end, start + BLOCK_COUNT, start + max_records)]:
                if max_bytes < len(value) and (values or batches):
                    break
                max_bytes -= len(value)
                values.append(value)
            if not values:
                break
            times = np.array([(1, at) for at in held.times[start : start + len(values)]])
            batch = replace(RecordBatch.of(tp, start, values), times=times)
            batches += split_by_epoch(batch, held.history)
            start += len(values)
            max_records -= len(values)
        return batches

    def read_each(
        self, ranges: Sequence[PartitionInfo], *, max_records: int, max_bytes: int
    ) -> list[RecordBatch | None]:
        results: list[RecordBatch | None] = []
        for each in ranges:
            if max_records <= 0 or max_bytes <= 0:
                break
            found = self.read(
                each.tp, each.earliest, each.end, max_records=max_records, max_bytes=max_bytes
            )
            found = found if found and found[0].offset == each.earliest else []
            results.append(found[0] if found else None)
            if found:
                max_records -= found[0].count
                max_bytes -= found[0].values.size_bytes
        return results

    def times(self, tp: TopicPartition, start: int, end: int) -> list[tuple[int, int]]:
        held = self.held.get(tp) or Partition()
        times = [*enumerate(held.times)][max(start, held.earliest) : end]
        later = [each for before, each in pairwise(times) if each[1] != before[1]]
        return [*times[:1], *later]


def _name(item: tuple[TopicPartition, Partition]) -> TopicPartition:
    return item[0]


class SimulatedAppender:
    """``LogWriter`` over a disk that takes its time.

    Args:
        done: called when a group is on disk, some time later.
    """

    is_full = False

    def __init__(
        self, world: World, disk: Disk, done: Callable[[list[LogEntry], Outcomes], None]
    ) -> None:
        self._world = world
        self._disk = disk
        self._done = done
        self._group: list[LogEntry] | None = None
        self._dead = False
        self.append_s = 0.0

    @property
    def busy(self) -> bool:
        return self._group is not None

    def write(self, entries: list[LogEntry]) -> None:
        if self._group is not None:
            self._world.fail(self._disk.name, "writes while the appender is busy")
        self._group = entries
        self._world.after(self._world.random.random() * self.append_s, self._synced)

    def crash(self) -> None:
        """The machine is gone: what is not synced may be on disk whole, or is lost whole."""
        self._dead = True
        if self._group is None:
            return
        if self._world.chance(0.5):
            self._disk.write(self._group)
            self._world.fault("crash between sync and ACK", self._disk.name)
        else:
            self._world.fault("unsynced append lost", self._disk.name)

    def _synced(self) -> None:
        if self._dead or self._group is None:
            return
        entries, self._group = self._group, None
        self._done(entries, self._disk.write(entries))
