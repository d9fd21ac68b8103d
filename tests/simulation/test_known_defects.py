"""Each known defect is found, and the worlds that show it are well without it."""

import re
from typing import Any

import pytest

from tests.simulation.cluster import simulate
from tests.simulation.known_defects import DEFECTS, DOORS, LOCKED, WRONG, Defect
from tests.simulation.shape import limited
from tests.simulation.world import SimulationError

SEEDS = 60  # each defect is found within this number of seeds from its first one; most within five

OPEN: dict[str, Any] = {"locked": False, "byzantine": 0}
"""The shape for defects that do not concern keys."""


def find(defect: Defect) -> tuple[int, str]:
    """Return the first seed that shows a defect, and the simulator's finding."""
    with limited(defect.changes()):
        for seed in range(defect.first, defect.first + SEEDS):
            try:
                simulate(seed, defect.roles, **OPEN | {**defect.shape})
            except SimulationError as error:
                return seed, str(error)
    raise AssertionError(f"{SEEDS} seeds do not show: {defect.name}")


@pytest.mark.parametrize("defect", DEFECTS + DOORS, ids=lambda defect: defect.name)
def test_is_found(defect: Defect) -> None:
    seed, why = find(defect)
    assert re.search(defect.finds, why), why
    print(f"{defect.name} ({defect.where}): seed {seed}, after {seed - defect.first + 1}: {why}")
    simulate(seed, **OPEN | {**defect.shape})


def test_without_keys_byzantine_peers_do_harm() -> None:
    shape: dict[str, Any] = {**LOCKED, "locked": False}
    seed, why = find(Defect("there are no keys", "docs/security.md", WRONG, shape=shape))
    assert re.search(WRONG, why), why
    simulate(seed, **LOCKED)
