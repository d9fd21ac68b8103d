"""Means over three windows, in memory of a fixed size."""

from __future__ import annotations

import pytest

from dafka_console import time_series
from dafka_console.time_series import POINTS, WINDOWS, TimeSeries
from dafka_core.errors import InvalidRequestError

START = 562_172 * 3_024  # a multiple of each window's step


def test_each_window_has_the_means_of_its_steps() -> None:
    made = TimeSeries()
    for second in range(1_200):
        made.add(START + second, ["a", "b"], [second, 2 * second])
    recent = made.points("a", "10m")
    assert (recent[0], recent[-1]) == ((START + 600, 601), (START + 1_197, 1_198))
    assert len(recent) == POINTS
    hours = made.points("b", "6h")
    assert (hours[0], len(hours)) == ((START, sum(range(0, 216, 2)) / 108), 12)
    ((at, mean),) = made.points("b", "7d")
    assert (at, round(mean)) == (START, 1_199)
    assert made.last("a", 2) == [1_195, 1_198]
    assert (made.slope("a"), made.slope("b"), made.slope("none")) == (1, 2, 0)


def test_memory_does_not_grow_with_time_and_old_means_go() -> None:
    made = TimeSeries()
    for day in range(30):
        made.add(START + day * 86_400, ["a"], [day])
    for window in WINDOWS:
        assert [value for _, value in made.points("a", window)][-1] == 29
    assert [value for _, value in made.points("a", "7d")] == [*range(23, 30)]
    assert made.points("a", "10m") == [(START + 29 * 86_400, 29)]
    assert made._rings.shape == (3, 1, POINTS)


def test_series_come_and_go_and_keep_their_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_series, "MOST_SERIES", 3)
    made = TimeSeries()
    made.add(START, ["a", "b"], [1, 2])
    made.add(START + 3, ["c", "b", "a", "beyond"], [5, 4, 3, 9])
    assert made.points("a", "10m") == [(START, 1), (START + 3, 3)]
    assert made.points("b", "10m") == [(START, 2), (START + 3, 4)]
    assert made.points("c", "10m") == [(START + 3, 5)]
    assert made.points("beyond", "10m") == []
    made.add(START + 6, [], [])
    made.add(START + 6, ["a"], [7])
    assert made.points("a", "10m") == [(START + 6, 7)]


def test_a_clock_that_is_set_back_or_stands_still_for_days_shows_no_wrong_time() -> None:
    made = TimeSeries()
    made.add(START, ["a"], [1])
    made.add(START - 1_000, ["a"], [3])
    assert made.points("a", "10m") == [(START, 2)]
    made.add(START + 10**7, ["a"], [5])
    assert made.points("a", "7d")[-1][1] == 5
    assert len(made.points("a", "7d")) == 1


def test_an_unknown_window_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="must be one of 10m, 6h, 7d"):
        TimeSeries().points("a", "1h")
