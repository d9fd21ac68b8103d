"""A refusal is logged once a minute, and new ones always have room."""

from __future__ import annotations

import time

import pytest

from dafka_core.security.throttles import MOST_SAID, SAY_AGAIN_S, LogThrottle


def test_a_message_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said = LogThrottle()
    assert [said.is_new(each) for each in ("a", "a", "b")] == [True, False, True]
    now += SAY_AGAIN_S
    assert [said.is_new(each) for each in ("b", "a", "a")] == [True, True, False]


def test_the_number_of_messages_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said = LogThrottle()
    assert all(said.is_new(str(number)) for number in range(MOST_SAID))
    assert not said.is_new("new")
    now += SAY_AGAIN_S
    assert said.is_new("new")
    assert len(said._until) == 1
