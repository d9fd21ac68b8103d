"""A record keeps its producer's timestamp; no clock that jumps leaves its mark on a partition."""

import logging
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import (
    UNKNOWN_US,
    YEAR_1_US,
    TopicPartition,
    kept_times,
    lateness_us,
    times_between,
)
from dafka_core.model.timestamps import (
    MAX_AHEAD_US,
    MAX_LOGGED,
    STEP_LASTS_US,
    STEP_US,
    AheadLog,
    WallClock,
)
from dafka_core.model.values import Longs

NOW_US = 1_700_000_000_000_000
YEAR_US = 365 * 86_400 * 1_000_000


def each_of(times: Longs) -> list[int]:
    """The timestamp of each record."""
    stamps: list[int] = np.repeat(times[:, 1], times[:, 0]).tolist()
    return stamps


class Machine:
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


@pytest.mark.parametrize("step_us", [STEP_US, -STEP_US, 1])
def test_a_clock_that_is_corrected_is_followed_at_once(step_us: int) -> None:
    machine = Machine()
    machine.wall_us += step_us
    assert machine.pass_by(0) == NOW_US + step_us


def test_the_machines_own_clocks_are_read() -> None:
    clock = WallClock()
    before_us, after_us = clock.now_us(), clock.now_us()
    assert NOW_US < before_us <= after_us < before_us + STEP_US


RUNS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(-3, 3).map(lambda by: NOW_US + by * MAX_AHEAD_US)),
    min_size=1,
    max_size=6,
).map(np.array)


@given(RUNS, st.data())
def test_stores_keep_the_timestamps_of_producers(times: Longs, data: st.DataObject) -> None:
    count, latest_us = int(times[:, 0].sum()), NOW_US + MAX_AHEAD_US
    whole = each_of(kept_times(times, count, NOW_US, latest_us))
    assert whole == [us if us <= latest_us else NOW_US for us in each_of(times)]
    # However the records are cut on their way.
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})
    parts: list[int] = []
    for start, stop in pairwise(cuts):
        part = times_between(times, start, stop)
        parts += each_of(kept_times(part, stop - start, NOW_US, latest_us))
    assert parts == whole


@given(RUNS, st.integers(-4, 4))
def test_lateness_is_the_largest_step_back(times: Longs, before: int) -> None:
    newest_us, expected = NOW_US + before * MAX_AHEAD_US, 0
    for us in each_of(times):
        expected = max(expected, newest_us - us)
        newest_us = max(newest_us, us)
    assert lateness_us(times, NOW_US + before * MAX_AHEAD_US) == expected


def test_records_without_a_valid_timestamp_get_the_time_of_the_store() -> None:
    assert kept_times(None, 3, NOW_US, NOW_US).tolist() == [[3, NOW_US]]
    times = np.array([[1, YEAR_1_US], [2, YEAR_1_US - 1], [3, UNKNOWN_US], [1, NOW_US + 1]])
    kept = kept_times(times, 7, NOW_US, NOW_US).tolist()
    assert kept == [[1, YEAR_1_US], [2, NOW_US], [3, NOW_US], [1, NOW_US]]


def test_it_is_said_once_of_each_partition(caplog: pytest.LogCaptureFixture) -> None:
    ahead = AheadLog()
    with caplog.at_level(logging.WARNING, "dafka"):
        for _ in range(3):
            ahead.add({TopicPartition("t", "P"): 2 * MAX_AHEAD_US})
        assert len(caplog.records) == 1
        assert "topic 't', partition P: its records are stamped 7200 s ahead" in caplog.text
        ahead.add({TopicPartition("t", str(n)): 2 * MAX_AHEAD_US for n in range(MAX_LOGGED + 5)})
    assert len(caplog.records) == MAX_LOGGED
