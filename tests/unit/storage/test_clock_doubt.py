"""A clock that jumps ahead is not believed at once."""

from __future__ import annotations

import pytest

from dafka_core.storage.clock_doubt import DOUBTED_S, JUMP_US, ClockDoubt

S = 1_000_000


def test_a_jump_ahead_is_doubted_until_it_has_lasted(caplog: pytest.LogCaptureFixture) -> None:
    steady_s = now_us = 0
    doubt = ClockDoubt("what is old", lambda: steady_s)

    def believes(seconds: float, jump_us: int = 0) -> bool:
        nonlocal steady_s, now_us
        steady_s += int(seconds)
        now_us += int(seconds) * S + jump_us
        return doubt.believes(now_us)

    assert believes(10)
    assert believes(7 * 86_400)  # time that has passed is no jump
    assert believes(10, JUMP_US)
    assert not believes(10, JUMP_US + S)
    assert "what is old: the clock has jumped ahead by 1.0 h" in caplog.text
    assert not believes(DOUBTED_S - 1)
    assert believes(1, -JUMP_US)  # it was set right
    assert not believes(10, 2 * JUMP_US)
    assert not believes(DOUBTED_S - 1)
    assert believes(1)
    assert believes(10)
    assert believes(10, -10 * JUMP_US)
