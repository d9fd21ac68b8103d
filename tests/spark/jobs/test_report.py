"""The table of a week's results."""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from demo.report import Tally, delay_table
from rich.console import Console

START = datetime(2013, 1, 1, tzinfo=UTC)


def _row(day: int, origin: str, carrier: str, mean: float | None, **more: int) -> dict[str, Any]:
    departed = {"cancelled": 2, "delayed": 4, "mean_delay_min": mean, "max_delay_min": 50}
    none = {"cancelled": 10, "delayed": 0, "mean_delay_min": None, "max_delay_min": None}
    start = START + timedelta(days=day)
    window = {"window_start": start, "window_end": start + timedelta(days=1)}
    counts = none if mean is None else departed
    return {**window, "origin": origin, "carrier": carrier, "flights": 10, **counts, **more}


def _results() -> list[dict[str, Any]]:
    rows = [
        _row(day, origin, carrier, float(day))
        for day in range(7)
        for origin, carrier in (("EWR", "UA"), ("JFK", "B6"), ("LGA", "DL"))
    ]
    return [*rows, _row(0, "EWR", "AA", None), _row(6, "JFK", "XX", -4.0)]


def test_a_tally_weighs_means_by_departed_flights() -> None:
    tally = Tally()
    tally.add(_row(0, "EWR", "UA", 10.0, flights=12))
    tally.add(_row(1, "EWR", "UA", None))
    tally.add(_row(2, "EWR", "UA", -2.0, flights=4))
    assert (tally.flights, tally.cancelled, tally.departed) == (26, 14, 12)
    assert tally.mean_min == pytest.approx((10 * 10.0 + 2 * -2.0) / 12)
    assert tally.worst_min == 50
    assert math.isnan(Tally().mean_min)


def test_the_table_lists_carriers_by_their_names_and_fits_a_terminal() -> None:
    screen = io.StringIO()
    Console(width=80, file=screen).print(delay_table(_results(), {"UA": "United"}))
    text = screen.getvalue()
    united = next(line for line in text.splitlines() if "United" in line)
    assert united.split() == ["United", "70", "3.0", "3.0", "50.0%", "20.0%", "50"]
    assert "XX" in text
    assert "…" not in text
