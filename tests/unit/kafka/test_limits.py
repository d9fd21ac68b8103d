"""Time limits of clients."""

from __future__ import annotations

from dafka_kafka.options import Limits


def test_what_is_large_may_take_longer() -> None:
    limits = Limits(arrival_s=10, slowest_bytes_per_s=100)
    assert limits.patience_s(12) == 10.12
    assert limits.patience_s(1_000) == 20
