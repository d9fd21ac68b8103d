"""Random steps on two partitions of a log, compared with the simulated disk."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dafka_core.config.topic_rules import parse_compression, parse_rules
from dafka_core.errors import OffsetConflictError
from dafka_core.model.epochs import Epoch, EpochId, digest, last_life
from dafka_core.model.log_entries import (
    Commit,
    Discard,
    LogEntry,
    Promise,
    RestartPartition,
    SetAside,
    SetTransaction,
    Stage,
)
from dafka_core.model.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import Log
from dafka_core.storage.block import Block
from dafka_core.storage.retention import Retention
from dafka_core.storage.snapshot import Snapshot
from tests.integration.storage.staged import A, B, clean, facts, held, tiny_area
from tests.simulation.checkers import Checkers
from tests.simulation.disk import Disk, Partition
from tests.simulation.world import SimulationError, World

P, Q = (TopicPartition("t", name) for name in "pq")
PARTITIONS = st.sampled_from((P, Q))
ATTEMPTS = st.sampled_from((A, B))
SIZES = st.sampled_from((1, 2, 30, 300))
SHIFTS = st.sampled_from((0, 0, 0, 0, 0, -1, 1))
VERSIONS = st.integers(NO_VERSION, 6)
STAMPS = st.lists(st.sampled_from((-5_000, 500, 5_000_000)), max_size=3)
"""Timestamps of a producer, relative to now: late, out of order or ahead; none leaves them to the
store."""


def in_file(store: Log, tp: TopicPartition, start: int, end: int) -> list[bytes]:
    """Return everything at the leased positions of the file."""
    (found,), lease = store.lease([(tp, start, end)], max_blocks=1_000, max_bytes=1 << 30)
    values: list[bytes] = []
    with (store.directory / "data.mdb").open("rb") as data:
        for first, position, size_bytes in found.blocks:
            block = Block.parse(os.pread(data.fileno(), size_bytes, position))
            batch = RecordBatch(tp, first, block.values, times=block.times)
            values += batch.between(max(start, first), min(end, batch.end)).values
    assert lease is not None
    store.end_lease(lease.id)
    return values


def named(batches: Sequence[RecordBatch]) -> list[tuple[bytes, Epoch | None]]:
    """Return the records of batches, each with its epoch."""
    return [(value, batch.epoch) for batch in batches for value in batch.values]


def contents(store: Log | Snapshot) -> list[object]:
    """Return what a reader receives of both partitions."""
    return [(store.info(tp), held(store, tp.partition)) for tp in (P, Q)]


class LogSteps(RuleBasedStateMachine):
    """Steps with arbitrary arguments: log and simulated disk execute each, or both refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.now_us = 1_000_000_000
        self.store = self.opened()
        checkers = Mock(Checkers, disks={})
        self.disk = checkers.disks["disk"] = Disk(World(0), checkers, "disk", self.clock_us)
        self.numbers = count()
        self.aside: list[tuple[str, int, list[tuple[bytes, int]]]] = []
        """Partition and first offset of the records set aside, with their values and times."""
        self.replaced: set[TopicPartition] = set()
        self.newest_us = {P: 0, Q: 0}
        self.moment = ExitStack()  # an open snapshot of the log, and what it had when it was opened
        self.snapshot: Snapshot | None = None
        self.seen: list[object] = []

    def opened(self) -> Log:
        return Log(self.directory, clock_us=self.clock_us)

    def clock_us(self) -> int:
        return self.now_us

    def model(self, tp: TopicPartition) -> Partition:
        return self.disk.held.setdefault(tp, Partition())

    def state(self, tp: TopicPartition) -> TransactionState:
        return self.disk.transaction_state(tp)

    def batch(
        self,
        tp: TopicPartition,
        offset: int,
        size: int,
        transaction: Transaction | None = None,
        stamps: Sequence[int] = (),
        epoch: Epoch | None = None,
    ) -> RecordBatch:
        """Records that no other batch has; the larger ones make blocks that are not extended."""
        values = [b"%d," % next(self.numbers) * (1 + size) for _ in range(size)]
        batch = RecordBatch.of(tp, offset, values, transaction)
        runs = [(1, self.now_us + stamps[n % len(stamps)]) for n in range(size) if stamps]
        return replace(batch, times=np.array(runs) if runs else None, epoch=epoch)

    def write(self, entry: LogEntry) -> bool:
        """Write an entry to both; return False if both refuse it, with the same error."""
        self.now_us += 1_000
        (expected,) = self.disk.write([entry])
        (found,) = self.store.write([entry])
        assert (found and facts(found)) == (expected and facts(expected))
        return found is None

    def move_aside(self, tp: TopicPartition, start: int) -> None:
        """Note the records that a history without them replaces."""
        model, first = self.model(tp), max(start, self.disk.earliest(tp))
        if first < model.end:
            stamped = [*zip(model.records[first:], model.times[first:], strict=True)]
            self.aside.append((tp.partition, first, stamped))
        if start < model.end:
            self.replaced.add(tp)

    def end_moment(self) -> None:
        self.moment.close()
        self.snapshot = None

    def teardown(self) -> None:
        self.end_moment()
        self.store.close()
        shutil.rmtree(self.directory)

    @initialize()
    def begin(self) -> None:
        self.write(RecordBatch.of(Q, 0, [b"first"]))

    @rule(
        tp=PARTITIONS,
        size=SIZES,
        at_staged_end=st.booleans(),
        shift=SHIFTS,
        stamps=STAMPS,
        begins=st.booleans(),
    )
    def append(
        self,
        tp: TopicPartition,
        size: int,
        at_staged_end: bool,
        shift: int,
        stamps: list[int],
        begins: bool,
    ) -> None:
        state, history = self.state(tp), self.disk.lives(tp).history
        offset = (state.staged_end if at_staged_end else state.end) + shift
        life = EpochId(last_life(history).number + 1, next(self.numbers), 1)
        epoch = Epoch(*life, offset, digest(history)) if begins and offset == state.end else None
        batch = self.batch(tp, offset, size, stamps=stamps, epoch=epoch)
        try:
            self.write(batch)
        except SimulationError:  # no store does it
            with pytest.raises(OffsetConflictError, match=f"ends at {state.end}"):
                self.store.append([batch])

    @rule(
        tp=PARTITIONS,
        attempt=ATTEMPTS,
        size=SIZES,
        anew=st.booleans(),
        shift=SHIFTS,
        version=VERSIONS,
    )
    def stage(
        self, tp: TopicPartition, attempt: str, size: int, anew: bool, shift: int, version: int
    ) -> None:
        state = self.state(tp)
        offset = (state.end if anew else state.staged_end) + shift
        self.write(Stage(self.batch(tp, offset, size), attempt, version))

    @rule(
        tp=PARTITIONS,
        size=SIZES,
        more=st.integers(0, 2),
        at_staged_end=st.booleans(),
        shift=SHIFTS,
    )
    def replicate(
        self, tp: TopicPartition, size: int, more: int, at_staged_end: bool, shift: int
    ) -> None:
        state, tail = self.state(tp), self.model(tp).tail
        if at_staged_end and tail and tail.attempt == "":
            transaction, offset = tail.transaction, state.staged_end + shift
            size = min(size, transaction.end - offset)
        else:
            offset = state.end + shift
            version = 1 + max(self.model(tp).last_version, 0)
            transaction = Transaction(version, offset, offset + size + more * 20)
        if size > 0 and offset >= max(transaction.start, 0):
            self.write(self.batch(tp, offset, size, transaction))

    @rule(
        attempts=st.tuples(ATTEMPTS, ATTEMPTS),
        tps=st.lists(PARTITIONS, min_size=1, max_size=2),
        shift=SHIFTS,
        version=VERSIONS,
        right=st.booleans(),
    )
    def commit(
        self,
        attempts: tuple[str, str],
        tps: list[TopicPartition],
        shift: int,
        version: int,
        right: bool,
    ) -> None:
        transactions: list[StagedTransaction] = []
        for tp, drawn in zip(tps, attempts, strict=False):
            state, tail, attempt = self.state(tp), self.model(tp).tail, drawn
            if right and tail and tail.attempt:
                attempt, version = tail.attempt, max(version, tail.transaction.version)
            end = state.staged_end + shift
            transactions.append(StagedTransaction(*tp, attempt, state.end, end, version))
        self.write(Commit(tuple(transactions)))

    @rule(tp=PARTITIONS, attempt=st.sampled_from((A, B, "")))
    def discard(self, tp: TopicPartition, attempt: str) -> None:
        assert self.write(Discard(tp, attempt))

    @rule(tp=PARTITIONS, version=VERSIONS, length=st.integers(1, 3), beyond=st.booleans())
    def set_transaction(self, tp: TopicPartition, version: int, length: int, beyond: bool) -> None:
        end = self.disk.end(tp) + beyond
        transaction = Transaction(version, max(end - length, 0), max(end, 1))
        self.write(SetTransaction(tp, transaction))

    @rule(tp=PARTITIONS, number=st.integers(1, 9))
    def promise(self, tp: TopicPartition, number: int) -> None:
        assert self.write(Promise(tp, EpochId(number, 1, 1)))

    @rule(tp=PARTITIONS, part=st.integers(0, 5))
    def trim(self, tp: TopicPartition, part: int) -> None:
        end = self.disk.end(tp)
        self.disk.trim(tp, min(end * part // 4, end))
        assert self.store.trim(tp, end * part // 4) == self.disk.earliest(tp)

    @rule(tp=PARTITIONS, back=st.integers(-1, 5) | st.integers(-1, 350))
    def set_aside(self, tp: TopicPartition, back: int) -> None:
        start = max(self.disk.end(tp) - back, 0)
        self.move_aside(tp, start)
        assert self.write(SetAside(tp, start))

    @rule(tp=PARTITIONS, ahead=st.integers(-1, 2))
    def restart(self, tp: TopicPartition, ahead: int) -> None:
        start = max(self.disk.end(tp) + ahead, 0)
        transaction = Transaction(1, start - 1, start) if start else None
        if start > self.disk.end(tp):
            self.move_aside(tp, self.disk.earliest(tp))
            self.replaced.add(tp)
        assert self.write(RestartPartition(tp, start, (), transaction))

    @rule(part=st.integers(0, 1))
    def discard_aside(self, part: int) -> None:
        for each in self.store.aside()[part:]:
            self.aside.remove((each.partition, each.start, self.stamped_aside(each.id)))
            assert self.store.discard_aside(each.id)

    @rule(limit=st.sampled_from(("2kB", "100kB", "1MB")))
    def retain(self, limit: str) -> None:
        Retention(self.store, parse_rules(f"t={limit}")).run(lambda: None)
        for info in self.store.partitions():
            assert self.disk.earliest(info.tp) <= info.earliest <= self.disk.end(info.tp)
            self.disk.trim(info.tp, info.earliest)

    @rule()
    def compress(self) -> None:
        self.store.compressor(parse_compression("*=zstd"), 0.0).step()

    @rule()
    def link(self) -> None:
        while self.store.linker.step():
            pass

    @rule()
    def merge(self) -> None:
        clean(self.store)

    @rule()
    def discard_stale(self) -> None:
        stale = [each for each in self.disk.held.values() if each.tail]
        assert self.store.discard_stale(-60) == len(stale)
        for each in stale:
            each.tail = None

    @rule()
    def merge_a_little(self) -> None:
        self.store.merge_step()

    @rule()
    def begin_moment(self) -> None:
        self.end_moment()
        self.snapshot = self.moment.enter_context(self.store.snapshot())
        self.seen = contents(self.store)

    @rule()
    def reopen(self) -> None:
        self.end_moment()
        self.store.close()
        self.store = self.opened()

    @rule()
    def kill(self) -> None:
        """Continue with a copy of the files while the log has them open, as after a kill."""
        self.end_moment()
        left, store = self.directory, self.store
        self.directory = shutil.copytree(left, tempfile.mkdtemp(), dirs_exist_ok=True)
        self.store = self.opened()
        store.close()
        shutil.rmtree(left)

    def stamped_aside(self, aside_id: int) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        for batch in self.store.read_aside(aside_id):
            assert batch.times is not None
            times = np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist()
            found += zip(batch.values, times, strict=True)
        return found

    @invariant()
    def the_log_is_as_the_disk(self) -> None:
        assert self.snapshot is None or contents(self.snapshot) == self.seen
        aside = self.store.aside()
        found = [(each.partition, each.start, self.stamped_aside(each.id)) for each in aside]
        assert sorted(found) == sorted(self.aside)
        assert self.store.partitions() == self.disk.partitions()
        for tp in (P, Q):
            model = self.model(tp)
            assert self.store.transaction_state(tp) == self.state(tp)
            assert self.store.lives(tp) == self.disk.lives(tp)
            expected = model.records[model.earliest :]
            assert held(self.store, tp.partition) == expected
            on_disk = self.disk.read(tp, 0, model.end, max_records=1 << 20, max_bytes=1 << 30)
            assert named(self.store.read(tp, 0, model.end)) == named(on_disk)
            assert in_file(self.store, tp, model.earliest, model.end) == expected
            assert self.store.times(tp, 0, model.end) == self.disk.times(tp, 0, model.end)
            self.newest_us[tp] = max(self.newest_us[tp], *model.times, 0)
            statistics = self.store.statistics(tp)
            if statistics is not None and statistics.records:
                assert statistics.size_bytes >= sum(map(len, expected))
                is_newest = statistics.last_time_us == self.newest_us[tp]
                assert is_newest or tp in self.replaced
            elif statistics is not None:
                assert statistics.size_bytes == 0


class LogStepsOfTinyAppendArea(LogSteps):
    """The steps, with an append area so small that few records pass through all its levels."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        tiny_area(self.patch)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


LogSteps.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
LogStepsOfTinyAppendArea.TestCase.settings = LogSteps.TestCase.settings
TestLog = LogSteps.TestCase
TestTinyAppendArea = LogStepsOfTinyAppendArea.TestCase
