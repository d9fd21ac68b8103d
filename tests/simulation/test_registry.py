"""Simulated gateways that change the partition registry at once, each world from its seed."""

from collections import Counter

import pytest

from tests.simulation.defective_registry import DEFECTS, RARE
from tests.simulation.registry import simulate_registry
from tests.simulation.world import SimulationError

SEEDS = 200
QUICK_SEEDS = 16
BATCH = 8

FAULTS = (
    "lost",
    "doubled",
    "partition",
    "connection cut",
    "crash of a store",
    "stall",
    "clock jumped",
    "records set aside",
    "committed",
    "refused",
)


@pytest.fixture(scope="module")
def total() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize(
    "first",
    [
        *range(0, QUICK_SEEDS, BATCH),
        *(
            pytest.param(first, marks=pytest.mark.nightly)
            for first in range(QUICK_SEEDS, SEEDS, BATCH)
        ),
    ],
)
def test_gateways_agree(first: int, total: Counter[str]) -> None:
    for seed in range(first, first + BATCH):
        total += simulate_registry(seed).faults


def test_all_that_can_go_wrong_went_wrong(total: Counter[str]) -> None:
    if not total:  # run alone
        for seed in range(QUICK_SEEDS):
            total += simulate_registry(seed).faults
    assert not [kind for kind in FAULTS if not total[kind]], total


def test_a_seed_gives_the_same_trace_always() -> None:
    assert simulate_registry(3).trace_hash == simulate_registry(3).trace_hash


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (seeds == RARE))
        for name, (_, seeds) in DEFECTS.items()
    ],
)
def test_a_defect_is_found(name: str) -> None:
    lease, seeds = DEFECTS[name]

    def simulate() -> None:
        for seed in range(seeds):
            simulate_registry(seed, lease)

    with pytest.raises(SimulationError):
        simulate()
