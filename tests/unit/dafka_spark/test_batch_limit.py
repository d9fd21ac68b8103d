"""How much of what is waiting a micro-batch takes."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dafka_core.model.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.source.read_limit import ASSUMED_BYTES, BatchLimit, records_within

A, B, C = (TopicPartition("t", name) for name in "ABC")


def limit(**given: str) -> BatchLimit:
    return BatchLimit(SourceOptions.of({"subscribe": "t", **given}))


def test_all_that_fits() -> None:
    assert records_within(10_000, {A: 60, B: 40}, {A: [100.0], B: [100.0]}) == 100
    assert records_within(5_000, {A: 60, B: 40}, {A: [100.0], B: [100.0]}) == 50


def test_one_at_least() -> None:
    assert records_within(1, {A: 60, B: 40}, {A: [1e9], B: [1e9]}) == 1


def test_records_that_become_larger() -> None:
    """The first of them decide while they fill the limit, not the mean of all."""
    sizes = {A: [10.0, 10.0, 1_000.0, 1_000.0]}
    assert records_within(5_000, {A: 1_000}, sizes) == 500
    assert records_within(2_500, {A: 1_000}, sizes) == 250
    assert records_within(5_000 + 250_000, {A: 1_000}, sizes) == 750


def test_partitions_of_which_nothing_is_told_are_as_the_others() -> None:
    assert records_within(5_000, {A: 50, B: 50}, {A: [100.0]}) == 50
    assert records_within(5_000, {A: 50, B: 50}, {A: [100.0], B: []}) == 50
    assert records_within(10 * ASSUMED_BYTES, {A: 50, B: 50}, {}) == 10


@given(
    st.dictionaries(
        st.integers(0, 20),
        st.tuples(st.integers(1, 10**9), st.lists(st.integers(1, 10**6), min_size=4, max_size=4)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 10**12),
)
def test_the_limit_holds_and_is_used(
    given: dict[int, tuple[int, list[int]]], limit_bytes: int
) -> None:
    """If each partition gives the same share, they have so many bytes, or all that they have."""
    waiting = {TopicPartition("t", str(name)): count for name, (count, _) in given.items()}
    sizes = {TopicPartition("t", str(name)): each for name, (_, each) in given.items()}
    total = sum(waiting.values())
    found = records_within(limit_bytes, waiting, sizes)
    assert 1 <= found <= total

    def bytes_of(records: int) -> float:
        share = records / total
        return sum(
            waiting[tp] * size * min(max(share - part / 4, 0), 0.25)
            for tp in waiting
            for part, size in enumerate(sizes[tp])
        )

    slack = 1e-6 * limit_bytes + 2 * 10**6
    assert found == 1 or bytes_of(found) <= limit_bytes + slack
    assert found == total or bytes_of(found + 1) >= limit_bytes - slack


def test_both_limits_hold() -> None:
    waiting, firsts = {A: 10_000, B: 10_000}, {A: 0, B: 0}
    both = limit(maxOffsetsPerTrigger="100", maxBytesPerTrigger=str(50 * ASSUMED_BYTES))
    assert both.default == ReadMaxRows(100)
    assert sum(both.taken(both.default, waiting, firsts, {}, turn=0).values()) == 50
    both = limit(maxOffsetsPerTrigger="100", maxBytesPerTrigger=str(500 * ASSUMED_BYTES))
    assert sum(both.taken(both.default, waiting, firsts, {}, turn=0).values()) == 100
    assert sum(both.taken(ReadAllAvailable(), waiting, firsts, {}, turn=0).values()) == 20_000


def test_no_partition_starves() -> None:
    waiting, firsts = {A: 1_000_000, B: 3, C: 0}, {A: 0, B: 0, C: 0}
    some = limit(maxBytesPerTrigger=str(100 * ASSUMED_BYTES))
    taken = some.taken(some.default, waiting, firsts, {}, turn=0)
    assert taken[B] >= 1
    assert sum(taken.values()) == 100
    assert C not in taken
    one = limit(maxBytesPerTrigger="1")
    turns = [one.taken(one.default, waiting, firsts, {}, turn=turn) for turn in range(2)]
    assert turns == [{A: 1}, {B: 1}]


def test_the_default_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    waiting, firsts = {A: 10_000_000}, {A: 0}
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        default = limit()
        for _ in range(2):
            taken = default.taken(default.default, waiting, firsts, {}, turn=0)
            assert taken == {A: (4 << 30) // ASSUMED_BYTES}
        (said,) = [each.getMessage() for each in caplog.records]
        assert "takes 4194304 of the 10000000 waiting records" in said
        assert "maxBytesPerTrigger is 4294967296 ('unlimited' takes all)" in said
        caplog.clear()
        asked = limit(maxBytesPerTrigger="1m")
        asked.taken(asked.default, waiting, firsts, {}, turn=0)
        small = limit()
        small.taken(small.default, {A: 1_000}, firsts, {}, turn=0)
        assert not caplog.records


def test_what_spark_is_told() -> None:
    assert limit().default == ReadMaxBytes(4 << 30)
    assert limit(maxBytesPerTrigger="unlimited").default == ReadAllAvailable()
    # All that is available would not wait.
    some = limit(maxBytesPerTrigger="unlimited", minOffsetsPerTrigger="5").default
    assert isinstance(some, ReadMaxBytes)
