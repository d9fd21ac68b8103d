"""The records that a micro-batch takes."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dafka_core.model.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.source.read_limit import ASSUMED_BYTES, BatchLimit, Sizes, Waiting, records_within

A, B, C = (TopicPartition("t", name) for name in "ABC")


def limit(**given: str) -> BatchLimit:
    return BatchLimit(SourceOptions.of({"subscribe": "t", **given}))


SIZES = {A: [10.0, 10.0, 1_000.0, 1_000.0]}


@pytest.mark.parametrize(
    ("limit_bytes", "waiting", "sizes", "records"),
    [
        (10_000, {A: 60, B: 40}, {A: [100.0], B: [100.0]}, 100),
        (5_000, {A: 60, B: 40}, {A: [100.0], B: [100.0]}, 50),
        (1, {A: 60, B: 40}, {A: [1e9], B: [1e9]}, 1),
        # The first records decide while they fill the limit, not the mean of all.
        (5_000, {A: 1_000}, SIZES, 500),
        (2_500, {A: 1_000}, SIZES, 250),
        (5_000 + 250_000, {A: 1_000}, SIZES, 750),
        # A partition without sizes has those of the others.
        (5_000, {A: 50, B: 50}, {A: [100.0]}, 50),
        (5_000, {A: 50, B: 50}, {A: [100.0], B: []}, 50),
        (10 * ASSUMED_BYTES, {A: 50, B: 50}, {}, 10),
    ],
)
def test_records_within_a_limit(
    limit_bytes: int, waiting: Waiting, sizes: Sizes, records: int
) -> None:
    assert records_within(limit_bytes, waiting, sizes) == records


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
    """The records have that many bytes if each partition gives the same share."""
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


def test_both_limits_apply() -> None:
    waiting, firsts = {A: 10_000, B: 10_000}, {A: 0, B: 0}
    for fitting, taken in ((50, 50), (500, 100)):
        size = str(fitting * ASSUMED_BYTES)
        both = limit(maxOffsetsPerTrigger="100", maxBytesPerTrigger=size)
        assert both.default == ReadMaxRows(100)
        assert sum(both.taken(both.default, waiting, firsts, {}, turn=0).values()) == taken
    assert sum(both.taken(ReadAllAvailable(), waiting, firsts, {}, turn=0).values()) == 20_000


def test_no_partition_starves() -> None:
    waiting, firsts = {A: 1_000_000, B: 3, C: 0}, {A: 0, B: 0, C: 0}
    some = limit(maxBytesPerTrigger=str(100 * ASSUMED_BYTES))
    taken = some.taken(some.default, waiting, firsts, {}, turn=0)
    assert (taken[B] >= 1, sum(taken.values()), C in taken) == (True, 100, False)
    one = limit(maxBytesPerTrigger="1")
    turns = [one.taken(one.default, waiting, firsts, {}, turn=turn) for turn in range(2)]
    assert turns == [{A: 1}, {B: 1}]


def test_the_default_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    many, firsts = {A: 10_000_000}, {A: 0}
    default, given, small = limit(), limit(maxBytesPerTrigger="1m"), limit()
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        for _ in range(2):
            taken = default.taken(default.default, many, firsts, {}, turn=0)
            assert taken == {A: (4 << 30) // ASSUMED_BYTES}
        given.taken(given.default, many, firsts, {}, turn=0)
        small.taken(small.default, {A: 1_000}, firsts, {}, turn=0)
    (text,) = [each.getMessage() for each in caplog.records]
    assert "takes 4194304 of the 10000000 waiting records" in text
    assert "maxBytesPerTrigger is 4294967296 ('unlimited' takes all)" in text


def test_the_limit_for_spark() -> None:
    assert limit().default == ReadMaxBytes(4 << 30)
    assert limit(maxBytesPerTrigger="unlimited").default == ReadAllAvailable()
    # With ReadAllAvailable a batch would not wait.
    some = limit(maxBytesPerTrigger="unlimited", minOffsetsPerTrigger="5").default
    assert isinstance(some, ReadMaxBytes)
