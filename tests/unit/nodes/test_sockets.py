"""The node stops reading from a peer above its rate until the peer is below it again."""

from __future__ import annotations

import logging

import pytest

from dafka_core.nodes.connection_quotas import AHEAD_S, PeerRates

FAST, SLOW = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
RATE = 1_000


def test_a_peer_is_held_to_its_rate_over_time() -> None:
    rates, sent = PeerRates(RATE), 0
    now = 0.0
    while now < 100:
        rates.take_due(now)
        if FAST not in rates.paused:
            rates.add(now, FAST, "N", 300)
            sent += 300
        now = round(now + 0.01, 2)
    assert 100 * RATE <= sent <= (100 + AHEAD_S) * RATE + 300
    assert rates.pause_count > 100


def test_a_peer_below_its_rate_is_never_paused() -> None:
    rates = PeerRates(RATE)
    for step in range(1_000):
        assert not rates.add(step / 10, SLOW, "N", RATE // 10)
        rates.add(step / 10, FAST, "N", RATE)
    assert rates.paused.keys() == {FAST}
    # After a quiet time it may send one burst, not a longer one.
    assert not rates.add(1_000, SLOW, "N", RATE)
    assert rates.add(1_000, SLOW, "N", 1)


def test_the_end_of_a_pause_is_known() -> None:
    rates = PeerRates(RATE)
    rates.add(5, FAST, "N", 3 * RATE)
    assert rates.paused == {FAST: 5 + 3 - AHEAD_S}
    assert rates.take_due(6.9) == []
    assert rates.take_due(7) == [FAST]
    assert rates.take_due(8) == []
    rates.add(8, FAST, "N", 9 * RATE)
    rates.forget(FAST)
    assert not rates.paused
    assert not rates.add(8, FAST, "N", RATE)


def test_without_a_rate_no_peer_is_paused() -> None:
    rates = PeerRates(0)
    assert not any(rates.add(0, FAST, "N", 1 << 40) for _ in range(100))
    assert not rates.paused


def test_pauses_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rates = PeerRates(RATE)
    with caplog.at_level(logging.WARNING, "dafka.mesh"):
        for second in range(70):
            rates.take_due(second)
            rates.add(second, FAST, "N", 2 * RATE + 1)
    [line] = caplog.messages
    assert f"N at {FAST} sends more than 1000 bytes a second, option max_peer_rate_bytes" in line
