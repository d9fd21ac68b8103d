"""50 worlds, 300 each night, each from its seed: ``make soak SEED=n`` replays one that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.byzantine import KINDS
from tests.simulation.cluster import simulate
from tests.simulation.soak import BATCH, Report, simulate_batch

FIRST = 300  # fifty seeds from here on have every kind of fault

SEEDS = 300
QUICK_SEEDS = 50

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def total() -> Report:
    return Report()


@pytest.mark.parametrize(
    "first",
    [
        *range(FIRST, FIRST + QUICK_SEEDS, BATCH),
        *(
            pytest.param(first, marks=pytest.mark.nightly)
            for first in range(FIRST + QUICK_SEEDS, FIRST + SEEDS, BATCH)
        ),
    ],
)
def test_seeds(first: int, total: Report) -> None:
    report = simulate_batch(first, min(BATCH, FIRST + SEEDS - first))
    assert not report.failures, "\n".join(report.failure_lines())
    total.add(report)


@pytest.mark.parametrize(
    ("seeds", "least"), [(QUICK_SEEDS, 1), pytest.param(SEEDS, 5, marks=pytest.mark.nightly)]
)
def test_all_that_can_go_wrong_went_wrong(seeds: int, least: int, total: Report) -> None:
    # A simulation without faults shows nothing.
    if total.seeds < seeds:
        # Run alone, or after a failure.
        total = simulate_batch(FIRST, seeds)
    assert min(total.faults[kind] for kind in FAULTS) >= least, total.faults
    assert total.delivered > total.records > 0
    # Byzantine peers have tried everything, and were refused it.
    assert min(total.sent[kind] for kind in KINDS.values()) >= least, total.sent
    assert min(total.refused[kind] for kind in REFUSED) >= least, total.refused


REFUSED = (
    "records",
    "subscription",
    "beacon",
    "invalid",
    "Head",
    "Ack",
    "EpochAck",
    "HistoryReply",
)

FAULTS = (
    "lost",
    "doubled",
    "reordered",
    "corrupted",
    "queue full",
    "partition",
    "one-way partition",
    "lost in a partition",
    "connection cut",
    "half-open connection",
    "crash of a store",
    "crash of a producer",
    "crash of a consumer",
    "crash of a reader",
    "unsynced append lost",
    "crash between sync and ACK",
    "slow disk",
    "stall",
    "consumer does not read",
    "tower killed",
    "beacon lost",
    "trimmed",
    "goes on behind what nobody has",
    "records that nobody has",
    "clock jumped",
    "producer started twice",
    "records set aside",
    "store put back",
    "store wiped",
)


def test_seeds_differ_and_give_the_same_traces_in_other_processes() -> None:
    here = [simulate(seed).trace_hash for seed in range(3)]
    assert len({*here}) == len(here)
    code = "from tests.simulation.cluster import simulate\n"
    code += "print(*[simulate(seed).trace_hash for seed in range(3)])"
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.split() == here
