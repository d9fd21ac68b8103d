"""A record has one timestamp; no clock that jumps leaves its mark on a partition."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import TopicPartition, times_between
from dafka_core.model.timestamps import (
    MAX_AHEAD_US,
    MAX_LOGGED,
    STEP_LASTS_US,
    AheadLog,
    WallClock,
    in_order,
    stamped_once,
)
from dafka_core.model.values import Longs

NOW_US = 1_700_000_000_000_000
YEAR_US = 365 * 86_400 * 1_000_000


def each_of(times: Longs) -> list[int]:
    """The timestamp of each record."""
    stamps: list[int] = np.repeat(times[:, 1], times[:, 0]).tolist()
    return stamps


class Machine:
    """A machine with two clocks."""

    def __init__(self) -> None:
        self.wall_us = NOW_US
        self.steady_us = 5
        self.clock = WallClock(lambda: self.wall_us, lambda: self.steady_us)

    def pass_by(self, us: int) -> int:
        """Lets time pass; returns what the clock says then."""
        self.wall_us += us
        self.steady_us += us
        return self.clock.now_us()


@pytest.mark.parametrize("years", [10, -10])
def test_a_clock_that_jumps_and_is_right_again_is_not_believed(
    years: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    machine.wall_us += years * YEAR_US
    with caplog.at_level(logging.WARNING, "dafka"):
        assert machine.pass_by(10) == NOW_US + 10
        assert machine.pass_by(STEP_LASTS_US - 1) == NOW_US + STEP_LASTS_US + 9
    assert [record.message.split(" s:")[0] for record in caplog.records] == [
        f"the clock has jumped by {years * YEAR_US // 1_000_000}"
    ]
    machine.wall_us -= years * YEAR_US
    assert machine.pass_by(10) == NOW_US + STEP_LASTS_US + 19
    # The next jump begins anew.
    machine.wall_us += years * YEAR_US
    assert machine.pass_by(20) == NOW_US + STEP_LASTS_US + 39


def test_a_clock_that_was_set_is_believed_when_that_has_lasted() -> None:
    machine = Machine()
    machine.wall_us += 3 * YEAR_US
    assert machine.pass_by(0) == NOW_US
    assert machine.pass_by(STEP_LASTS_US) == NOW_US + 3 * YEAR_US + STEP_LASTS_US
    assert machine.pass_by(1) == NOW_US + 3 * YEAR_US + STEP_LASTS_US + 1


@pytest.mark.parametrize("step_us", [MAX_AHEAD_US, -MAX_AHEAD_US, 1])
def test_a_clock_that_is_corrected_is_followed_at_once(step_us: int) -> None:
    machine = Machine()
    machine.wall_us += step_us
    assert machine.pass_by(0) == NOW_US + step_us


def test_the_machines_own_clocks_are_read() -> None:
    clock = WallClock()
    before_us, after_us = clock.now_us(), clock.now_us()
    assert NOW_US < before_us <= after_us < before_us + MAX_AHEAD_US


RUNS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(-3, 3).map(lambda by: NOW_US + by * MAX_AHEAD_US)),
    min_size=1,
    max_size=6,
).map(np.array)


@given(RUNS, st.integers(-2, 2), st.data())
def test_stores_that_have_the_same_records_keep_the_same_timestamps(
    times: Longs, last: int, data: st.DataObject
) -> None:
    last_us = NOW_US + last * MAX_AHEAD_US
    count = int(times[:, 0].sum())
    whole = each_of(in_order(times, count, NOW_US, last_us))
    # However the records are cut on their way.
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})
    parts: list[int] = []
    for start, stop in pairwise(cuts):
        before_us = parts[-1] if parts else last_us
        part = times_between(times, start, stop)
        parts += each_of(in_order(part, stop - start, NOW_US, before_us))
    assert parts == whole
    assert whole == sorted(whole)
    assert len(whole) == count
    for found, stamp in zip(whole, each_of(times), strict=True):
        assert found >= last_us
        assert found == stamp or stamp < found or stamp > NOW_US + MAX_AHEAD_US
        assert found <= max(last_us, NOW_US + MAX_AHEAD_US)


def test_records_without_a_timestamp_get_the_time_of_the_store() -> None:
    assert in_order(None, 3, NOW_US, 0).tolist() == [[3, NOW_US]]
    assert in_order(None, 3, NOW_US, NOW_US + 7).tolist() == [[3, NOW_US + 7]]


def test_a_stamp_far_ahead_poisons_nothing() -> None:
    ahead = stamped_once(1, NOW_US + 10 * YEAR_US)
    [[_, kept_us]] = in_order(ahead, 1, NOW_US, NOW_US - 5).tolist()
    assert kept_us == NOW_US
    assert in_order(stamped_once(1, NOW_US + 1), 1, NOW_US, kept_us).tolist() == [[1, NOW_US + 1]]


def test_it_is_said_once_of_each_partition(caplog: pytest.LogCaptureFixture) -> None:
    ahead = AheadLog()
    with caplog.at_level(logging.WARNING, "dafka"):
        for _ in range(3):
            ahead.say({TopicPartition("t", "P"): 2 * MAX_AHEAD_US})
        assert len(caplog.records) == 1
        assert "topic 't', partition P: its records are stamped 120 s ahead" in caplog.text
        ahead.say({TopicPartition("t", str(n)): 2 * MAX_AHEAD_US for n in range(MAX_LOGGED + 5)})
    assert len(caplog.records) == MAX_LOGGED
