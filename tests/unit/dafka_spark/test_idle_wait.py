"""How long a query that has nothing to do may wait."""

from __future__ import annotations

import time

import pytest

from dafka_spark.source.idle_wait import LONG_S, PAUSE_S, SHORT_S, IdleWait


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def asked_after(self, idle: IdleWait, gap_s: float, *, waits: bool = True) -> float:
        """How long a question waits that comes so long after the last answer."""
        self.now += gap_s
        allowed_s = idle.allowed_s()
        self.now += allowed_s if waits else 0
        return allowed_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def rounds(clock: Clock, idle: IdleWait, gap_s: float, seconds: float) -> list[float]:
    """What is waited, question by question, while nothing comes for so long."""
    found, end = [], clock.now + seconds
    while clock.now < end:
        found.append(clock.asked_after(idle, gap_s))
        idle.answered(idle=True)
    return found


def test_nobody_waits_before_there_was_nothing(clock: Clock) -> None:
    idle = IdleWait()
    assert clock.asked_after(idle, 0.01) == 0
    idle.answered(idle=False)
    assert clock.asked_after(idle, 0.01) == 0


def test_who_is_idle_for_longer_waits_for_longer(clock: Clock) -> None:
    idle = IdleWait()
    idle.answered(idle=True)
    waited = rounds(clock, idle, 0.012, 10)
    assert waited == sorted(waited)
    assert (waited[0], waited[-1]) == (SHORT_S, LONG_S)
    idle.answered(idle=False)
    assert clock.asked_after(idle, 0.012) == 0
    idle.answered(idle=True)
    assert clock.asked_after(idle, 0.012) == SHORT_S


def test_a_query_with_a_trigger_interval_is_not_kept_waiting(clock: Clock) -> None:
    idle = IdleWait()
    idle.answered(idle=True)
    assert set(rounds(clock, idle, PAUSE_S + 0.1, 10)) == {0.0}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_sources_do_not_keep_each_other_waiting_for_long(clock: Clock, count: int) -> None:
    """Each is asked after the others: what they wait is the gap between its questions."""
    sources = [IdleWait() for _ in range(count)]
    for source in sources:
        source.answered(idle=True)
    rounds_s = []
    for _ in range(200):
        clock.now += 0.01
        began = clock.now
        for source in sources:
            clock.asked_after(source, 0.001)
            source.answered(idle=True)
        rounds_s.append(clock.now - began)
    assert max(rounds_s) <= count * (SHORT_S + 0.001) + 0.001
    assert min(rounds_s[10:]) >= SHORT_S
