"""How long is waited: never beyond a deadline, and for each longer than for what it depends on."""

from __future__ import annotations

import pytest

from dafka_core.config.node_options import ReaderOptions
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline


def test_times_are_in_the_order_in_which_they_depend_on_each_other() -> None:
    expiry_s = ReaderOptions().peer_expiry_ms / 1000
    # Before a store is given up, the mesh has had the time to forget one that is gone.
    assert expiry_s < timing.ANSWER_S < timing.SILENT_S < timing.UNREACHABLE_S
    # A store just started is heard of first, and then says where it is.
    assert timing.FIND_S < timing.OTHERS_S
    assert timing.LOOK_AGAIN_S < timing.RETRY_S < timing.ANSWER_S
    # What is trusted without asking is younger than what is kept.
    assert timing.TRUST_S < timing.RANGES_S < timing.DESCRIPTION_S < timing.CONNECTION_IDLE_S


def test_a_deadline_has_not_passed_before_its_time() -> None:
    deadline = Deadline(60.0)
    assert not deadline.is_over
    assert 0 <= deadline.waited_s < 60
    assert 0 < deadline.left_s <= 60 == deadline.timeout_s


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_after_a_deadline_a_little_is_left_to_look_once(timeout_s: float) -> None:
    deadline = Deadline(timeout_s)
    assert deadline.is_over
    assert 0 < deadline.left_s < 0.01
    assert list(deadline.attempts()) == [0]


def test_the_last_attempt_is_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LOOK_AGAIN_S", 60.0)
    deadline = Deadline(0.05)
    attempts = deadline.attempts()
    assert [next(attempts), next(attempts)] == [0, 1]
    assert deadline.is_over
    assert list(attempts) == []


def test_there_are_attempts_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LOOK_AGAIN_S", 0.0)
    deadline = Deadline(60.0)
    for number, attempt in enumerate(deadline.attempts()):
        assert attempt == number
        if attempt == 100:
            break
    assert not deadline.is_over


def test_an_attempt_that_outlasts_the_deadline_is_the_last_one() -> None:
    deadline = Deadline(0.01)
    attempts = deadline.attempts()
    assert next(attempts) == 0
    while not deadline.is_over:
        deadline.pause()
    assert list(attempts) == []
