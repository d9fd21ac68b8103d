"""Unacknowledged records of a producer, in bytes."""

from __future__ import annotations

from dafka_core.nodes.producer import Unacked


def test_what_is_acknowledged_counts_no_more() -> None:
    unacked = Unacked()
    for end, size_bytes in ((2, 10), (5, 20), (6, 40)):
        unacked.add(end, size_bytes)
    assert unacked.size_bytes == 70
    unacked.drop_until(4)  # in the middle of the second
    assert unacked.size_bytes == 60
    unacked.drop_until(6)
    assert unacked.size_bytes == 0
