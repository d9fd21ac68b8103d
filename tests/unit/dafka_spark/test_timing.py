"""A deadline ends waiting."""

from __future__ import annotations

import itertools

import pytest

from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline


@pytest.mark.parametrize(("timeout_s", "expected"), [(0.0, [0]), (0.05, [0, 1]), (-1.0, [0])])
def test_the_last_attempt_is_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, expected: list[int]
) -> None:
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 60.0)
    deadline = Deadline(timeout_s)
    assert deadline.is_over == (timeout_s <= 0)
    assert 0 < deadline.left_s <= max(timeout_s, 0.001)
    assert list(deadline.attempts()) == expected
    deadline.timeout_s = 60.0
    deadline.restart()
    assert not deadline.is_over
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 0.0)
    assert list(itertools.islice(deadline.attempts(), 100)) == list(range(100))
