"""Timeouts fit each other, and a deadline ends waiting."""

from __future__ import annotations

import itertools

import pytest

from dafka_core.config.node_options import ReaderOptions
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline

PEER_EXPIRY_S = ReaderOptions().peer_expiry_ms / 1e3


@pytest.mark.parametrize(
    "ascending",
    [
        # The mesh forgets a dead store before a task continues without it.
        (PEER_EXPIRY_S, timing.REQUEST_TIMEOUT_S, timing.STORE_TIMEOUT_S, timing.FLIGHT_FAILURE_S),
        # Discovery comes before the Flight endpoint.
        (timing.DISCOVERY_TIMEOUT_S, timing.FLIGHT_ANNOUNCE_TIMEOUT_S),
        (timing.POLL_INTERVAL_S, timing.STORE_BACKOFF_S, timing.REQUEST_TIMEOUT_S),
        (timing.REGISTRY_MAX_AGE_S, timing.SNAPSHOT_MAX_AGE_S, timing.LOCATION_MAX_AGE_S),
        (timing.LOCATION_MAX_AGE_S, timing.CONNECTION_IDLE_S),
    ],
)
def test_timeouts_are_in_the_order_of_their_dependence(ascending: tuple[float, ...]) -> None:
    assert all(first < second for first, second in itertools.pairwise(ascending))


@pytest.mark.parametrize("timeout_s", [60.0, 0.0, -1.0])
def test_a_deadline_leaves_a_valid_timeout(timeout_s: float) -> None:
    deadline = Deadline(timeout_s)
    assert deadline.is_over == (timeout_s <= 0)
    assert 0 < deadline.left_s <= max(timeout_s, 0.001)


@pytest.mark.parametrize(("timeout_s", "expected"), [(0.0, [0]), (0.05, [0, 1])])
def test_the_last_attempt_is_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, expected: list[int]
) -> None:
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 60.0)
    deadline = Deadline(timeout_s)
    assert list(deadline.attempts()) == expected
    deadline.timeout_s = 60.0
    deadline.restart()
    assert not deadline.is_over
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 0.0)
    assert list(itertools.islice(deadline.attempts(), 100)) == list(range(100))
