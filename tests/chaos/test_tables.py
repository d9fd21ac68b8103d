"""A few rounds of each table except the tenth; ``make chaos`` runs all. Failures have the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import TABLES, run_table

SEED = 20

NIGHTLY = {2, 3, 9, 11, 12}
"""The tables with queries; ``test_exactly_once`` kills drivers and stores in ``make test``."""

pytestmark = pytest.mark.timeout(900)
"""More than a round's own timeout."""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[pytest.mark.nightly] if number in NIGHTLY else [])
        for number, table in TABLES.items()
        if table.short_rounds
    ],
)
def test_nothing_is_lost_and_nothing_doubled(number: int, tmp_path: Path) -> None:
    table = TABLES[number]
    outcome = run_table(number, SEED, table.short_rounds, tmp_path, short=True)
    assert outcome.good, outcome.line()
    assert outcome.doubles == 0
    assert outcome.rounds == table.short_rounds
    assert outcome.faults.total() >= table.short_rounds
    assert outcome.records > 0
