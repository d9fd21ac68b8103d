"""The simulated disk does what the log does: whatever it is told, with the same outcome."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dafka_core.log_entries import Commit, Discard, LogEntry, SetTransaction, Stage
from dafka_core.records import NO_VERSION, RecordBatch, StagedTransaction, Transaction
from dafka_core.storage import Log
from tests.simulation.checkers import Checkers
from tests.simulation.disk import Disk
from tests.simulation.world import World

NAMES = (("a", "P"), ("a", "Q"), ("ab", "P"))
ATTEMPTS = ("A" * 32, "B" * 32)


def entry(chance: random.Random, log: Log) -> LogEntry:
    """Something to do that makes sense more often than not."""
    name = chance.choice(NAMES)
    end, staged_end, attempt, marker = log.transaction_state(*name)
    at = chance.choice((end, end, staged_end, staged_end, max(0, end - 1), end + 2))
    values = [chance.randbytes(3) for _ in range(chance.randint(1, 4))]
    number = (marker.number if marker else 0) + chance.choice((0, 1, 1, 1, 2))
    who = chance.choice(ATTEMPTS)
    match chance.randint(0, 9):
        case 0 if staged_end == end:
            return RecordBatch.of(*name, end, values)
        case 0 if attempt == "":
            return RecordBatch.of(*name, chance.choice((end, staged_end)), values)
        case 0 | 1 | 2:
            start = chance.choice((at, end))
            stop = max(at + len(values) + chance.choice((0, 0, 2)), start + 1)
            transaction = Transaction(number, min(start, at), stop)
            return RecordBatch.of(*name, at, values, transaction)
        case 3 | 4 | 5:
            return Stage(
                RecordBatch.of(*name, at, values), who, chance.choice((number, NO_VERSION))
            )
        case 6 | 7:
            mine = chance.choice((attempt or who, who))
            return Commit(
                (StagedTransaction(*name, mine, end, chance.choice((staged_end, at)), number),)
            )
        case 8:
            return Discard(*name, chance.choice((who, "")))
        case _:
            return SetTransaction(*name, Transaction(number, max(0, end - 2), max(1, end)))


@pytest.mark.parametrize("seed", range(8))
def test_does_what_the_log_does(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    world = World(seed)
    checkers = Checkers(world)
    disk = Disk(world, checkers, "disk")
    # What is published is no matter here.
    checkers.on_disk = lambda store, batch: None  # type: ignore[method-assign]
    checkers.on_committed = lambda store, transaction, values: None  # type: ignore[method-assign]
    done = 0
    with Log(tmp_path) as log:
        for _ in range(250):
            told = entry(chance, log)
            found, [expected] = disk.write([told]), log.write([told])
            assert [(type(e), str(e)) for e in found] == [(type(expected), str(expected))], told
            done += expected is None
            for name in NAMES:
                assert disk.transaction_state(*name) == log.transaction_state(*name), told
        assert disk.partitions() == [info for info in log.partitions() if info.end]
        for name in NAMES:
            end = log.end(*name)
            chunks = log.read(*name, 0, end)
            values = [value for chunk in chunks for value in chunk.values_list()]
            pieces = disk.read(*name, 0, end, max_records=end + 1, max_bytes=1 << 20)
            assert [value for piece in pieces for value in piece.values] == values
    assert done > 100
