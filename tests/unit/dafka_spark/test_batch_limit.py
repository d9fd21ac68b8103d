"""The records that a micro-batch takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming import datasource as spark

from dafka_core.model.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.source.micro_batch_stream import ASSUMED_BYTES, BatchLimit, records_within
from dafka_spark.source.offset_ranges import Waiting

A, B, C = (TopicPartition("t", name) for name in "ABC")
GROWING = {A: [10.0, 10.0, 1_000.0, 1_000.0]}


def limit(**given: str) -> BatchLimit:
    return BatchLimit(SourceOptions.of({"subscribe": "t", **given}))


def taken(of: BatchLimit, waiting: Waiting, by: Any = None, turn: int = 0) -> Waiting:
    return of.taken(by or of.default, waiting, lambda _: {}, turn=turn)


@pytest.mark.parametrize(
    ("limit_bytes", "waiting", "sizes", "records"),
    [
        # The first records decide while they fill the limit, not the mean of all.
        (2_500, {A: 1_000}, GROWING, 250),
        (5_000 + 250_000, {A: 1_000}, GROWING, 750),
        # A partition without sizes has those of the others.
        (5_000, {A: 50, B: 50}, {A: [100.0], B: []}, 50),
        (10 * ASSUMED_BYTES, {A: 50, B: 50}, {}, 10),
    ],
)
def test_records_within_a_limit(limit_bytes: int, waiting: Any, sizes: Any, records: int) -> None:
    assert records_within(limit_bytes, waiting, sizes) == records


FOUR_SIZES = st.lists(st.integers(1, 10**6), min_size=4, max_size=4)
PARTITIONS = st.lists(st.tuples(st.integers(1, 10**9), FOUR_SIZES), min_size=1, max_size=20)


@given(PARTITIONS, st.integers(1, 10**12))
def test_the_limit_holds_and_is_used(given: list[tuple[int, list[int]]], limit_bytes: int) -> None:
    """The records have that many bytes if each partition gives the same share."""
    tps = [TopicPartition("t", str(number)) for number in range(len(given))]
    waiting = {tp: count for tp, (count, _) in zip(tps, given, strict=True)}
    sizes = {tp: each for tp, (_, each) in zip(tps, given, strict=True)}
    total = sum(waiting.values())
    found = records_within(limit_bytes, waiting, sizes)
    assert 1 <= found <= total

    def bytes_of(records: int) -> float:
        parts = [min(max(records / total - part / 4, 0), 0.25) for part in range(4)]
        return sum(
            waiting[tp] * size * part
            for tp in tps
            for size, part in zip(sizes[tp], parts, strict=True)
        )

    slack = 1e-6 * limit_bytes + 2 * 10**6
    assert found == 1 or bytes_of(found) <= limit_bytes + slack
    assert found == total or bytes_of(found + 1) >= limit_bytes - slack


@pytest.mark.parametrize(("fitting", "records"), [(50, 50), (500, 100)])
def test_both_limits_apply(fitting: int, records: int) -> None:
    size = str(fitting * ASSUMED_BYTES)
    both, waiting = limit(maxOffsetsPerTrigger="100", maxBytesPerTrigger=size), {A: 9_000, B: 9_000}
    assert sum(taken(both, waiting).values()) == records
    assert sum(taken(both, waiting, spark.ReadAllAvailable()).values()) == 18_000  # Spark decides
    with pytest.raises(TypeError, match=r"ReadMaxFiles"):
        taken(both, waiting, spark.ReadMaxFiles(1))


def test_no_partition_starves() -> None:
    waiting = {A: 1_000_000, B: 3, C: 0}
    some = taken(limit(maxBytesPerTrigger=str(100 * ASSUMED_BYTES)), waiting)
    assert (some[B] >= 1, sum(some.values()), C in some) == (True, 100, False)
    one = limit(maxBytesPerTrigger="1")
    assert [taken(one, waiting, turn=turn) for turn in range(2)] == [{A: 1}, {B: 1}]


def test_the_default_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    many = {A: 10_000_000}
    default = limit()
    for _ in range(2):
        assert taken(default, many) == {A: (4 << 30) // ASSUMED_BYTES}
    taken(limit(maxBytesPerTrigger="1m"), many)
    assert taken(limit(maxOffsetsPerTrigger="9000000"), many) == {A: 9_000_000}
    taken(limit(), {A: 1_000})
    # Threads of earlier streams may log, too.
    (text,) = [each for each in caplog.messages if "maxBytesPerTrigger" in each]
    assert "takes 4194304 of the 10000000 waiting records" in text
    assert "maxBytesPerTrigger is 4294967296 ('unlimited' takes all)" in text


def test_the_limit_for_spark() -> None:
    assert limit().default == spark.ReadMaxBytes(4 << 30)
    assert limit(maxOffsetsPerTrigger="9", maxBytesPerTrigger="1k").default == spark.ReadMaxRows(9)
    assert limit(maxBytesPerTrigger="unlimited").default == spark.ReadAllAvailable()
    # With ReadAllAvailable a batch would not wait.
    waiting = limit(maxBytesPerTrigger="unlimited", minOffsetsPerTrigger="5").default
    assert isinstance(waiting, spark.ReadMaxBytes)
