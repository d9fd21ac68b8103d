"""Random steps on two partitions of a log, compared with a model of lists."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dafka_core.config.topic_rules import parse_compression, parse_rules
from dafka_core.errors import FencedError, OffsetConflictError
from dafka_core.model.log_entries import (
    Commit,
    Discard,
    LogEntry,
    RestartPartition,
    SetAside,
    SetTransaction,
    Stage,
    TransactionExistsError,
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
from dafka_core.storage.retention_pass import Retention
from tests.integration.storage.staged import A, B, clean, facts, held, tiny_area

PARTITIONS = st.sampled_from(("p", "q"))
ATTEMPTS = st.sampled_from((A, B))
SIZES = st.sampled_from((1, 2, 30, 300))
SHIFTS = st.sampled_from((0, 0, 0, 0, 0, -1, 1))
VERSIONS = st.integers(NO_VERSION, 6)

Facts = tuple[object, ...] | None
"""The class and the fields of an error."""


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


@dataclass
class Model:
    """A partition."""

    committed: list[bytes] = field(default_factory=list)
    staged: list[bytes] = field(default_factory=list)
    attempt: str = ""
    version: int = NO_VERSION
    transaction: Transaction | None = None
    last: tuple[str, int, int] | None = None
    last_transaction: Transaction | None = None
    earliest: int = 0
    aside: list[tuple[int, list[bytes]]] = field(default_factory=list)
    """First offset and values of the records set aside."""
    was_set_aside: bool = False

    @property
    def end(self) -> int:
        return len(self.committed)

    @property
    def staged_end(self) -> int:
        return self.end + len(self.staged)

    @property
    def last_version(self) -> int:
        return self.last_transaction.version if self.last_transaction else NO_VERSION

    def drop(self) -> None:
        self.staged, self.attempt, self.version, self.transaction = [], "", NO_VERSION, None

    def show(self) -> None:
        self.committed += self.staged
        self.drop()

    def set_aside(self, start: int) -> None:
        """Move the records from an offset on aside, and all staged ones away."""
        first, self.was_set_aside = max(start, self.earliest), True
        if first < self.end:
            self.aside.append((first, self.committed[first:]))
        self.drop()
        del self.committed[start:]
        self.earliest = min(self.earliest, start)
        self.last = self.last if self.last and self.last[2] <= start else None
        last = self.last_transaction
        self.last_transaction = last if last and last.end <= start else None

    def set_last(self, transaction: Transaction) -> None:
        if transaction.version > self.last_version:
            self.last_transaction = transaction


class LogSteps(RuleBasedStateMachine):
    """Steps with arbitrary arguments: log and model execute each, or both refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.store = Log(self.directory)
        self.models = {"p": Model(), "q": Model()}
        self.numbers = count()

    def write(self, entry: LogEntry) -> Facts:
        """Write an entry; return the class and the fields of its error."""
        (error,) = self.store.write([entry])
        return facts(error) if error else None

    def values(self, size: int) -> list[bytes]:
        """Values that no other record has; the larger ones make blocks that are not extended."""
        return [b"%d," % next(self.numbers) * (1 + size) for _ in range(size)]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @initialize()
    def begin(self) -> None:
        self.store.append([RecordBatch.of(TopicPartition("t", "q"), 0, [b"first"])])
        self.models["q"].committed = [b"first"]

    @rule(name=PARTITIONS, size=SIZES, at_staged_end=st.booleans(), shift=SHIFTS)
    def append(self, name: str, size: int, at_staged_end: bool, shift: int) -> None:
        model, values = self.models[name], self.values(size)
        offset = (model.staged_end if at_staged_end else model.end) + shift
        batch = RecordBatch.of(TopicPartition("t", name), offset, values)
        if offset == model.end:
            model.drop()
        elif offset == model.staged_end and model.transaction is not None:
            if batch.end >= model.transaction.end:
                model.set_last(model.transaction)
            model.show()
        else:
            with pytest.raises(OffsetConflictError, match=f"ends at {model.end}"):
                self.store.append([batch])
            return
        self.store.append([batch])
        model.committed += values

    @rule(
        name=PARTITIONS,
        attempt=ATTEMPTS,
        size=SIZES,
        anew=st.booleans(),
        shift=SHIFTS,
        version=VERSIONS,
    )
    def stage(
        self, name: str, attempt: str, size: int, anew: bool, shift: int, version: int
    ) -> None:
        model, values = self.models[name], self.values(size)
        offset = (model.end if anew else model.staged_end) + shift
        batch = RecordBatch.of(TopicPartition("t", name), offset, values)
        own = bool(model.staged) and model.attempt == attempt
        refusal: Facts = None
        if NO_VERSION < version <= model.last_version:
            refusal = (TransactionExistsError, "t", name, model.last_transaction)
        elif not own and (NO_VERSION < version < model.version or offset > model.end):
            refusal = (FencedError, "t", name, attempt)
        elif offset != model.end and not (own and offset == model.staged_end):
            end = model.staged_end if own else model.end
            refusal = (OffsetConflictError, "t", name, offset, end)
        assert self.write(Stage(batch, attempt, version)) == refusal
        if refusal:
            return
        if offset == model.end:
            model.drop()
        model.staged, model.attempt, model.version = model.staged + values, attempt, version

    @rule(
        name=PARTITIONS,
        size=SIZES,
        more=st.integers(0, 2),
        at_staged_end=st.booleans(),
        shift=SHIFTS,
    )
    def replicate(self, name: str, size: int, more: int, at_staged_end: bool, shift: int) -> None:
        model, values = self.models[name], self.values(size)
        if at_staged_end and model.transaction is not None:
            transaction = model.transaction
            offset = model.staged_end + shift
            values = values[: max(transaction.end - offset, 0)]
            if not values or offset < transaction.start:
                return
        else:
            offset = model.end + shift
            if offset < 0:
                return
            version = 1 + max(model.last_version, 0)
            transaction = Transaction(version, offset, offset + len(values) + more * 20)
        batch = RecordBatch.of(TopicPartition("t", name), offset, values, transaction)
        outcome = self.write(batch)
        goes_on = model.transaction == transaction and offset == model.staged_end
        if not goes_on and offset != model.end:
            assert outcome == (OffsetConflictError, "t", name, offset, model.end)
            return
        assert outcome is None
        if not goes_on:
            model.drop()
        model.staged, model.transaction, model.version = (
            model.staged + values,
            transaction,
            transaction.version,
        )
        if batch.end == transaction.end:
            model.show()
            model.set_last(transaction)

    @rule(
        attempts=st.tuples(ATTEMPTS, ATTEMPTS),
        names=st.lists(PARTITIONS, min_size=1, max_size=2),
        shift=SHIFTS,
        version=VERSIONS,
        right=st.booleans(),
    )
    def commit(
        self, attempts: tuple[str, str], names: list[str], shift: int, version: int, right: bool
    ) -> None:
        transactions: list[StagedTransaction] = []
        for name, drawn in zip(names, attempts, strict=False):
            model, attempt = self.models[name], drawn
            if right and model.attempt:
                attempt, version = model.attempt, max(version, model.version)
            transactions.append(
                StagedTransaction("t", name, attempt, model.end, model.staged_end + shift, version)
            )
        done: dict[str, tuple[Model, StagedTransaction]] = {}
        refusals: list[Facts] = []
        for transaction in transactions:
            name, model = transaction.partition, self.models[transaction.partition]
            last = done[name][1][2:5] if name in done else model.last
            if transaction[2:5] == last:
                continue
            if name in done or transaction.attempt != model.attempt:
                refusals.append((FencedError, "t", name, transaction.attempt))
            elif transaction.end != model.staged_end:
                end = transaction.end, model.staged_end
                refusals.append((OffsetConflictError, "t", name, *end))
            elif NO_VERSION < transaction.version <= model.last_version:
                refusals.append((TransactionExistsError, "t", name, model.last_transaction))
            done[name] = model, transaction
        assert self.write(Commit(tuple(transactions))) == (refusals[0] if refusals else None)
        if not refusals:
            for model, transaction in done.values():
                model.show()
                model.last = transaction[2:5]
                model.set_last(Transaction(transaction.version, transaction.start, transaction.end))

    @rule(name=PARTITIONS, attempt=st.sampled_from((A, B, "")))
    def discard(self, name: str, attempt: str) -> None:
        assert self.store.write([Discard(TopicPartition("t", name), attempt)]) == [None]
        model = self.models[name]
        if model.attempt == attempt:
            model.drop()

    @rule(name=PARTITIONS, version=VERSIONS, length=st.integers(1, 3), beyond=st.booleans())
    def set_transaction(self, name: str, version: int, length: int, beyond: bool) -> None:
        model = self.models[name]
        end = model.end + beyond
        transaction = Transaction(version, max(end - length, 0), max(end, 1))
        last = model.last_transaction
        refusal: Facts = None
        if transaction.end > model.end:
            refusal = (OffsetConflictError, "t", name, transaction.end, model.end)
        elif last and last.version == version and last != transaction:
            refusal = (TransactionExistsError, "t", name, last)
        assert self.write(SetTransaction(TopicPartition("t", name), transaction)) == refusal
        if not refusal:
            model.set_last(transaction)

    @rule(name=PARTITIONS, part=st.integers(0, 4))
    def trim(self, name: str, part: int) -> None:
        model = self.models[name]
        before = model.end * part // 4
        model.earliest = max(model.earliest, before)
        assert self.store.trim(TopicPartition("t", name), before) == model.earliest

    @rule(name=PARTITIONS, back=st.integers(-1, 5) | st.integers(-1, 350))
    def set_aside(self, name: str, back: int) -> None:
        model = self.models[name]
        start = max(model.end - back, 0)
        assert self.store.write([SetAside(TopicPartition("t", name), start)]) == [None]
        if start < model.end:
            model.set_aside(start)
        else:
            model.drop()

    @rule(name=PARTITIONS, ahead=st.integers(-1, 2))
    def restart(self, name: str, ahead: int) -> None:
        model = self.models[name]
        start = max(model.end + ahead, 0)
        transaction = Transaction(1, start - 1, start) if start else None
        entry = RestartPartition(TopicPartition("t", name), start, (), transaction)
        assert self.store.write([entry]) == [None]
        end = model.end
        model.drop()
        if start > end:
            model.set_aside(model.earliest)
            model.committed += [b""] * (start - model.end)
            model.earliest, model.last_transaction = start, transaction

    @rule(part=st.integers(0, 1))
    def discard_aside(self, part: int) -> None:
        for each in self.store.aside()[part:]:
            model = self.models[each.partition]
            model.aside.remove((each.start, self.aside(each.id)))
            assert self.store.discard_aside(each.id)

    @rule(limit=st.sampled_from(("2kB", "100kB", "1MB")))
    def retain(self, limit: str) -> None:
        for _ in Retention(self.store, parse_rules(f"t={limit}")).steps():
            pass
        for info in self.store.partitions():
            model = self.models[info.partition]
            assert model.earliest <= info.earliest <= model.end
            model.earliest = info.earliest

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
        stale = [model for model in self.models.values() if model.staged]
        assert self.store.discard_stale(-60) == len(stale)
        for model in stale:
            model.drop()

    @rule()
    def merge_a_little(self) -> None:
        self.store.merge_step()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Log(self.directory)

    @rule()
    def kill(self) -> None:
        """Continue with a copy of the files while the log has them open, as after a kill."""
        left, store = self.directory, self.store
        self.directory = shutil.copytree(left, tempfile.mkdtemp(), dirs_exist_ok=True)
        self.store = Log(self.directory)
        store.close()
        shutil.rmtree(left)

    def aside(self, aside_id: int) -> list[bytes]:
        return [value for batch in self.store.read_aside(aside_id) for value in batch.values]

    @invariant()
    def the_log_is_as_the_model(self) -> None:
        aside = [(each.partition, each.start, self.aside(each.id)) for each in self.store.aside()]
        expected = [(name, *each) for name, model in self.models.items() for each in model.aside]
        assert sorted(aside) == sorted(expected)
        facts: dict[str, Any] = {info.partition: info for info in self.store.partitions()}
        for name, model in self.models.items():
            tp = TopicPartition("t", name)
            attempt = model.attempt if model.staged else model.last[0] if model.last else ""
            assert self.store.transaction_state(tp) == TransactionState(
                model.end, model.staged_end, attempt, model.last_transaction
            )
            committed = model.committed[model.earliest :]
            assert held(self.store, name) == committed
            with self.store.snapshot() as snapshot:
                assert held(snapshot, name) == committed
            assert in_file(self.store, tp, model.earliest, model.end) == committed
            assert (name in facts) == bool(model.committed)
            found = self.store.statistics(tp)
            if found is not None and found.records:
                assert found.size_bytes >= sum(map(len, committed))
                assert found.last_time_us is not None
                last_us = self.store.times(tp, 0, model.end)[-1][1]
                # It remains the greatest so far when records are set aside.
                assert found.last_time_us == last_us or (
                    model.was_set_aside and found.last_time_us > last_us
                )
            elif found is not None:
                assert found.size_bytes == 0


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
