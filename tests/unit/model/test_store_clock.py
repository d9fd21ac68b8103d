"""A store's clock is compared with its log and its earlier time; in doubt it leaves no mark."""

import pytest

from dafka_core.model.timestamps import (
    ANY_US,
    DOUBTED_US,
    EARLIEST_US,
    JUMP_US,
    MAX_AHEAD_US,
    STEP_US,
    StoreClock,
)

S = 1_000_000
HOUR_US = 3_600 * S
DAY_US = 24 * HOUR_US
RIGHT_US = EARLIEST_US + 100 * DAY_US
Y2K_US = 946_684_800 * S


class Machine:
    """A machine whose clock may be wrong."""

    def __init__(self, agreed_us: int | None = None, wrong_us: int = 0) -> None:
        self.passed_us = 0
        self.wrong_us = wrong_us
        self.start(agreed_us)

    def start(self, agreed_us: int | None) -> None:
        self.clock = StoreClock(agreed_us, self.wall_us, lambda: self.passed_us)

    def right_us(self) -> int:
        return RIGHT_US + self.passed_us

    def wall_us(self) -> int:
        return self.right_us() + self.wrong_us

    def after(self, us: int, wrong_us: int | None = None) -> str:
        """Let time pass with a wrong clock; return why it is in doubt."""
        self.passed_us += us
        if wrong_us is not None:
            self.wrong_us = wrong_us
        return self.clock.doubt()

    def stamp_error_us(self) -> int:
        """Return the error of the time of records without a timestamp."""
        return self.clock.now_us() - self.right_us()


def test_a_clock_that_agrees_with_the_log_is_believed() -> None:
    for ago_us in (-STEP_US, 0, 10 * S, JUMP_US):
        machine = Machine(RIGHT_US - ago_us)
        assert machine.after(0) == ""
        assert machine.after(30 * DAY_US) == ""
        assert machine.stamp_error_us() == 0
        assert machine.clock.latest_us() == machine.right_us() + MAX_AHEAD_US
        assert machine.clock.compare(ANY_US) == machine.right_us()


def test_a_clock_that_differs_from_another_stores_is_in_doubt_until_both_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(RIGHT_US)
    for behind_us, why in (
        (JUMP_US, ""),
        (DAY_US, "the store's clock is 24.0 h ahead of the clock of store B"),
        (-DAY_US, "the store's clock is 24.0 h behind the clock of store B"),
        (0, ""),
    ):
        clocks_us = {"A": machine.wall_us(), "B": machine.wall_us() - behind_us}
        machine.clock.compare_stores(clocks_us)
        assert machine.after(0) == why
        assert machine.stamp_error_us() == 0
    assert caplog.text.count("nothing is deleted by age until both agree") == 1
    machine.clock.compare_stores({})
    assert machine.after(0) == ""


def test_a_clock_ahead_of_the_log_at_the_start_is_in_doubt_until_it_is_set_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(RIGHT_US - 60 * S, wrong_us=2 * DAY_US)
    why = "the store's clock is 48.0 h ahead of the newest time in its log"
    assert machine.after(0) == why
    assert [record.message.split(": ")[0] for record in caplog.records] == [why]
    assert machine.after(DOUBTED_US - S) == why
    assert machine.clock.latest_us() >= machine.right_us() + MAX_AHEAD_US
    # A new start does not take its time for that of the log.
    machine.start(machine.clock.compare(ANY_US))
    assert machine.after(DOUBTED_US - S) == why
    assert machine.after(S, 0) == ""
    assert machine.stamp_error_us() == 0
    assert "no longer in doubt" in caplog.text


def test_a_store_that_was_stopped_for_a_week_is_in_doubt_for_an_hour() -> None:
    machine = Machine(RIGHT_US - 7 * DAY_US)
    assert machine.after(0).startswith("the store's clock is 168.0 h ahead")
    assert machine.stamp_error_us() == 0
    assert machine.after(DOUBTED_US - 1)
    assert machine.after(1) == ""
    assert machine.after(1) == ""


def test_the_hour_begins_again_when_the_clock_is_set_to_another_wrong_time() -> None:
    machine = Machine(RIGHT_US, wrong_us=2 * DAY_US)
    assert machine.after(0)
    assert machine.after(DOUBTED_US - 1, 5 * DAY_US)
    assert machine.after(DOUBTED_US - 1)
    assert machine.after(1) == ""


@pytest.mark.parametrize("wrong_us", [-2 * DAY_US, -10 * 60 * S, Y2K_US - RIGHT_US])
def test_a_clock_behind_the_log_at_the_start_replaces_no_timestamp(wrong_us: int) -> None:
    machine = Machine(RIGHT_US - 5 * S, wrong_us)
    why = f"{-wrong_us / HOUR_US:.1f} h behind the newest time in its log"
    possible = machine.wall_us() >= EARLIEST_US
    assert machine.after(0).endswith(why if possible else "before 2026-01-01T00:00:00Z")
    assert machine.clock.latest_us() == ANY_US
    assert machine.stamp_error_us() == -5 * S  # the log's time plus the elapsed time
    assert machine.after(60 * S)
    assert machine.stamp_error_us() == -5 * S
    assert machine.after(S, 0) == ""
    assert machine.stamp_error_us() == 0
    assert machine.clock.latest_us() == machine.right_us() + MAX_AHEAD_US


@pytest.mark.parametrize("agreed_us", [None, RIGHT_US])
def test_an_impossible_time_is_never_believed(agreed_us: int | None) -> None:
    machine = Machine(agreed_us, Y2K_US - RIGHT_US)
    for _ in range(10):
        assert machine.after(DOUBTED_US)
        assert machine.clock.latest_us() == ANY_US
        assert machine.clock.now_us() >= EARLIEST_US
    machine.after(0, 0)
    assert machine.stamp_error_us() == 0


@pytest.mark.parametrize("wrong_us", [DAY_US, -DAY_US, Y2K_US - RIGHT_US])
def test_a_clock_that_jumps_while_the_store_runs_leaves_no_mark(wrong_us: int) -> None:
    machine = Machine(RIGHT_US)
    assert machine.after(10 * S) == ""
    why = machine.after(10 * S, wrong_us)
    assert why.endswith(("its time before it jumped", "before 2026-01-01T00:00:00Z"))
    for _ in range(8):
        assert machine.after(10 * S)
        assert machine.stamp_error_us() == 0
        assert machine.clock.latest_us() >= machine.right_us() + MAX_AHEAD_US
    assert machine.clock.compare(ANY_US) == machine.right_us()
    assert machine.after(10 * S, 0) == ""
    assert machine.stamp_error_us() == 0
    machine.after(S, wrong_us)
    assert machine.after(DOUBTED_US - 1)
    assert bool(machine.after(1)) is (machine.wall_us() < EARLIEST_US)


def test_a_smaller_step_is_followed() -> None:
    machine = Machine(RIGHT_US)
    for wrong_us in (JUMP_US, 0, -JUMP_US, 0):
        assert machine.after(10 * S, wrong_us) == ""
        assert machine.stamp_error_us() == wrong_us


def test_a_new_log_has_its_first_records_to_compare_with() -> None:
    machine = Machine(None, wrong_us=2 * DAY_US)
    assert machine.after(10 * S) == ""
    machine.clock.compare(machine.wall_us())  # of records that it has stamped itself
    machine.clock.compare(machine.wall_us() - JUMP_US)
    assert machine.after(0) == ""
    machine.clock.compare(machine.right_us())
    why = "the store's clock is 48.0 h ahead of the time of its first records"
    assert machine.after(0) == why
    assert machine.clock.compare(ANY_US) == machine.right_us()
    assert machine.after(S, 0) == ""
    assert machine.stamp_error_us() == 0


def test_later_old_records_are_nothing_new() -> None:
    for agreed_us, passed_us in ((None, DOUBTED_US), (RIGHT_US, 0)):
        machine = Machine(agreed_us)
        machine.after(passed_us)
        machine.clock.compare(machine.right_us() - 9 * DAY_US)
        assert machine.after(0) == ""
