"""How many records an answer to Fetch has."""

from __future__ import annotations

import pytest

from dafka_core.kafka.fetch_limits import (
    BATCH_BYTES,
    RECORD_BYTES,
    FetchLimits,
    most_records,
)
from dafka_core.values import Values

EACH = 100 + RECORD_BYTES


def hundreds(count: int) -> Values:
    return Values.of([b"x" * 100] * count)


def test_partitions_share_what_there_is_in_their_order() -> None:
    limits = FetchLimits(1_000)
    assert limits.room(600) == 600
    limits.take(600)
    assert limits.room(600) == 400
    limits.take(400)
    assert limits.room(600) == 0


@pytest.mark.parametrize("max_bytes", [0, -1, 1, 50])
def test_the_first_with_records_gives_one_however_little_is_asked_for(max_bytes: int) -> None:
    limits = FetchLimits(max_bytes)
    assert limits.room(max_bytes) >= 1
    assert limits.fitting(hundreds(3), limits.room(max_bytes)) == 1
    limits.take(150)
    assert limits.room(1_000) == 0
    assert limits.fitting(hundreds(3), 50) == 0


@pytest.mark.parametrize("more", [-1, 0, 1, EACH - 1, EACH])
def test_records_fit_with_what_is_around_them(more: int) -> None:
    limits = FetchLimits(10_000)
    count = limits.fitting(hundreds(30), BATCH_BYTES + 3 * EACH + more)
    assert count == 3 + more // EACH


def test_a_slice_of_values_counts_alone() -> None:
    values = Values.of([b"x" * 1_000] * 5 + [b"y"] * 5)[5:]
    values.columns()
    assert FetchLimits(10_000).fitting(values, BATCH_BYTES + 3 * (1 + RECORD_BYTES)) == 3


def test_empty_records_are_bounded_too() -> None:
    assert most_records(1) == 1
    assert most_records(7_000_000) == 1_000_001
