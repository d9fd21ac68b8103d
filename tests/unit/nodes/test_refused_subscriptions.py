"""What ends with a connection, and what had never been granted."""

from __future__ import annotations

import tracemalloc

import pytest

from dafka_core.nodes import refused_subscriptions
from dafka_core.nodes.refused_subscriptions import RefusedSubscriptions


def test_as_many_are_ended_as_were_refused() -> None:
    refused = RefusedSubscriptions()
    assert not refused.end(b"pA")
    refused.note(b"pA")
    refused.note(b"pA")
    refused.note(b"pB")
    assert [refused.end(b"pA") for _ in range(3)] == [True, True, False]
    assert refused.end(b"pB")
    assert len(refused) == 0


def test_when_there_are_too_many_nothing_of_another_ones_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refused_subscriptions, "MOST_REFUSED", 3)
    refused = RefusedSubscriptions()
    for octet in range(9):
        refused.note(bytes([octet]))
    assert len(refused) == 3
    assert refused.end(b"pA")
    assert [refused.end(bytes([octet])) for octet in range(3)] == [True] * 3
    # All are back that it knew of: it counts again.
    assert not refused.end(b"pA")
    refused.note(b"pA")
    assert refused.end(b"pA")


def test_a_long_prefix_takes_no_more_memory_than_a_short_one() -> None:
    refused = RefusedSubscriptions()
    tracemalloc.start()
    for number in range(1_000):
        refused.note(b"%4096d" % number)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(refused) == 1_000
    assert taken < 500_000
    assert refused.end(b"%4096d" % 7)
