"""Limits for guessed passwords, and for repeated log messages."""

import time

import pytest

from dafka_core.security.throttles import (
    MAX_ADDRESSES,
    MAX_MESSAGES,
    MINUTE_S,
    MOST_WRONG,
    REPEAT_AFTER_S,
    Guesses,
    LogThrottle,
    guesser,
)


def test_an_address_is_refused_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    guesses = Guesses()
    for count in range(1, MOST_WRONG + 1):
        assert not guesses.are_refused("10.0.0.1")
        assert guesses.add_wrong("10.0.0.1") == count
    assert guesses.are_refused("10.0.0.1")
    assert not guesses.are_refused("10.0.0.2")
    later = time.monotonic() + MINUTE_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not guesses.are_refused("10.0.0.1")
    assert guesses.add_wrong("10.0.0.1") == 1
    for number in range(MOST_WRONG):
        guesses.add_wrong(f"2001:db8::{number:x}")
    assert guesses.are_refused("2001:db8::ffff")
    assert not guesses.are_refused("2001:db8:0:1::1")


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("?", "?"),
    ],
)
def test_an_ipv6_network_is_one_guesser(address: str, whose: str) -> None:
    assert guesser(address) == whose


def test_the_number_of_guessers_is_bounded() -> None:
    guesses = Guesses()
    for number in range(MAX_ADDRESSES + 100):
        guesses.add_wrong(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert guesses.add_wrong("10.0.0.0") == 1, "the oldest one is forgotten"
    assert guesses.add_wrong("10.0.39.100") == 2


def test_a_message_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said = LogThrottle()
    assert [said.is_new(each) for each in ("a", "a", "b")] == [True, False, True]
    now += REPEAT_AFTER_S
    assert [said.is_new(each) for each in ("b", "a", "a")] == [True, True, False]


def test_the_number_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said = LogThrottle()
    assert all(said.is_new(str(number)) for number in range(MAX_MESSAGES))
    assert not said.is_new("new")
    now += REPEAT_AFTER_S
    assert all(said.is_new(f"new {number}") for number in range(MAX_MESSAGES))
    assert not said.is_new("newest")
