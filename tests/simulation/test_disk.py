"""The simulated disk processes entries as the log does, with equal outcomes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dafka_core.model.log_entries import Commit, Discard, LogEntry, SetTransaction, Stage
from dafka_core.model.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)
from dafka_core.storage import Log
from tests.simulation.checkers import Checkers
from tests.simulation.disk import Disk
from tests.simulation.world import World

PARTITIONS = (
    TopicPartition("a", "P"),
    TopicPartition("a", "Q"),
    TopicPartition("ab", "P"),
)
ATTEMPTS = ("A" * 32, "B" * 32)


def entry(chance: random.Random, log: Log) -> LogEntry:
    """Something to do that makes sense more often than not."""
    tp = chance.choice(PARTITIONS)
    end, staged_end, attempt, last = log.transaction_state(tp)
    at = chance.choice((end, end, staged_end, staged_end, max(0, end - 1), end + 2))
    values = [chance.randbytes(3) for _ in range(chance.randint(1, 4))]
    version = (last.version if last else 0) + chance.choice((0, 1, 1, 1, 2))
    who = chance.choice(ATTEMPTS)
    match chance.randint(0, 9):
        case 0 if staged_end == end:
            return RecordBatch.of(tp, end, values)
        case 0 if attempt == "":
            return RecordBatch.of(tp, chance.choice((end, staged_end)), values)
        case 0 | 1 | 2:
            start = chance.choice((at, end))
            stop = max(at + len(values) + chance.choice((0, 0, 2)), start + 1)
            transaction = Transaction(version, min(start, at), stop)
            return RecordBatch.of(tp, at, values, transaction)
        case 3 | 4 | 5:
            return Stage(RecordBatch.of(tp, at, values), who, chance.choice((version, NO_VERSION)))
        case 6 | 7:
            mine = chance.choice((attempt or who, who))
            return Commit(
                (StagedTransaction(*tp, mine, end, chance.choice((staged_end, at)), version),)
            )
        case 8:
            return Discard(tp, chance.choice((who, "")))
        case _:
            return SetTransaction(tp, Transaction(version, max(0, end - 2), max(1, end)))


def stamped(chance: random.Random, entry: LogEntry, now_us: int) -> LogEntry:
    """The entry, and some of its records are stamped already: late, out of order, far ahead."""
    if not isinstance(entry, RecordBatch) or chance.random() < 0.5:
        return entry
    stamps = [now_us + chance.choice((-5_000, 500, 100_000_000)) for _ in entry.values]
    return replace(entry, times=np.array([(1, each) for each in stamps]))


@pytest.mark.parametrize("seed", range(8))
def test_does_what_the_log_does(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    world = World(seed)
    checkers = Checkers(world)
    time_us = 0

    def now_us() -> int:
        return time_us

    disk = Disk(world, checkers, "disk", now_us)
    # Ignore published records.
    checkers.on_disk = lambda store, batch: None  # type: ignore[method-assign]
    checkers.on_committed = lambda store, transaction, values: None  # type: ignore[method-assign]
    done = 0
    checkers.on_stamped = lambda *stamped: None  # type: ignore[method-assign]
    with Log(tmp_path, clock_us=now_us) as log:
        for time_us in range(1_000_000_000, 1_000_250_000, 1_000):
            told = stamped(chance, entry(chance, log), time_us)
            found, [expected] = disk.write([told]), log.write([told])
            assert [(type(e), str(e)) for e in found] == [(type(expected), str(expected))], told
            done += expected is None
            for tp in PARTITIONS:
                assert disk.transaction_state(tp) == log.transaction_state(tp), told
        assert disk.partitions() == [info for info in log.partitions() if info.end]
        for tp in PARTITIONS:
            end = log.end(tp)
            batches = log.read(tp, 0, end)
            values = [value for batch in batches for value in batch.values]
            found_batches = disk.read(tp, 0, end, max_records=end + 1, max_bytes=1 << 20)
            assert [value for batch in found_batches for value in batch.values] == values
            assert disk.times(tp, 0, end) == log.times(tp, 0, end)
    assert done > 100
