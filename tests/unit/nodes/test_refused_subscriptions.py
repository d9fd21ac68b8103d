"""What ends with a connection, and what had never been granted."""

from __future__ import annotations

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
