"""A few rounds of each table except the tenth; ``make chaos`` runs all. Failures have the seed."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import TABLES, run_table

SEED = 20

OFTEN = {1, 6, 8}
"""The tables of killed stores and producers, and of damage. The simulator separates machines, kills
towers and slows consumers in many seeds; the others take long."""


pytestmark = pytest.mark.timeout(900)  # more than a round's own timeout


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[] if number in OFTEN else [pytest.mark.nightly])
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
