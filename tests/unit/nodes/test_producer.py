"""Unacknowledged records of a producer, in bytes."""

from __future__ import annotations

from dafka_core.model.values import Values
from dafka_core.nodes.producer import Unacked


def test_acknowledged_records_are_counted_no_more() -> None:
    unacked, values = Unacked(), [b"x" * size for size in (4, 6, 7, 8, 5, 40)]
    for start, end in ((0, 2), (2, 5), (5, 6)):
        unacked.add(end, Values.of(values[start:end]))
    unacked.size_bytes = 70
    for offset, left in ((0, 70), (1, 66), (4, 45), (4, 45), (5, 40), (6, 0)):
        unacked.drop_until(offset)
        assert unacked.size_bytes == left
