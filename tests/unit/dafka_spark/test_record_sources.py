"""The sources of option fetch, and the batches that the mesh source makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.flight.store_location import StoreLocation, this_machine
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import (
    SMALL_BYTES,
    SMALL_RECORDS,
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
)
from dafka_spark.errors import FetchError
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import HeldRange, OffsetRange
from dafka_spark.source.partition_reader import fetch
from dafka_spark.source.record_sources import (
    FlightSource,
    LocalLogSource,
    MeshSource,
    current_archive_sources,
    open_sources,
)
from tests.integration.archive.records import A, B, archived
from tests.memory_reader import MemoryReader

TP = TopicPartition("t", "A")


class Brought(MemoryReader):
    """Returns fixed batches."""

    def __init__(self, batches: list[RecordBatch]) -> None:
        super().__init__()
        self.batches = batches

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        yield from self.batches


def batches_of(lists: list[list[bytes]], offset: int) -> list[RecordBatch]:
    batches = []
    for values in lists:
        batches.append(RecordBatch.of(TP, offset, values))
        offset += len(values)
    return batches


def read(
    batches: list[RecordBatch],
    max_records: int,
    max_bytes: int,
    written: Sequence[tuple[int, int]] | None = None,
) -> list[RecordBatch]:
    """Return the batches of the mesh source, with times if ``written`` is given."""
    source = Brought(batches)
    source.written = list(written or ())
    given = {"maxrecordsperbatch": str(max_records), "maxbytesperbatch": str(max_bytes)}
    mesh = MeshSource(
        source.connect, SourceOptions.of({"subscribe": "t", **given}), written is not None
    )
    end = batches[-1].end if batches else 5
    return list(mesh.read(OffsetRange(*TP, 5, end)))


LISTS = st.lists(st.lists(st.binary(max_size=12), min_size=1, max_size=9), max_size=9)
LIMITS = (st.integers(1, 12), st.integers(1, 30))


@given(LISTS, *LIMITS)
def test_batches_keep_every_record_and_the_limits(
    lists: list[list[bytes]], max_records: int, max_bytes: int
) -> None:
    expected = [value for values in lists for value in values]
    cut = read(batches_of(lists, 5), max_records, max_bytes)
    assert [value for batch in cut for value in batch.values] == expected
    at = 5
    for batch in cut:
        assert (batch.tp, batch.offset) == (TP, at)
        assert 1 <= batch.count <= max_records
        assert batch.values.size_bytes == sum(map(len, batch.values))
        assert batch.values.size_bytes <= max_bytes or batch.count == 1
        assert batch.times is None
        at = batch.end


@pytest.mark.parametrize(
    ("lists", "max_records", "max_bytes", "counts"),
    [
        ([[b"a"]] * 10, 4, 100, [4, 4, 2]),
        ([[b"ab"]] * 5, 100, 5, [2, 2, 1]),
        ([[b"a"] * 3] * 4, 8, 100, [6, 6]),
        ([[b"a"] * 9, [b"a"] * 2], 4, 100, [4, 4, 1, 2]),
        ([[b"abc", b"d"] * 2, [b"a"]], 100, 4, [2, 2, 1]),
        ([[b"a"], [b"a"] * SMALL_RECORDS, [b"a"], [b"a"]], 10_000, 100_000, [1, SMALL_RECORDS, 2]),
        ([[b"a"], [bytes(SMALL_BYTES)], [b"a"], [b"a"]], 10_000, 1 << 20, [1, 1, 2]),
        ([[b"a"], [b"a"] * (SMALL_RECORDS - 1)], 10_000, 100_000, [SMALL_RECORDS]),
    ],
)
def test_small_ones_are_joined_and_large_ones_cut(
    lists: list[list[bytes]], max_records: int, max_bytes: int, counts: list[int]
) -> None:
    cut = read(batches_of(lists, 5), max_records, max_bytes)
    assert [batch.count for batch in cut] == counts


WRITTEN = st.dictionaries(st.integers(0, 40), st.integers(0, 10**16)).map(
    lambda found: sorted(found.items())
)


def times_by_record(written: list[tuple[int, int]], offset: int, end: int) -> list[int]:
    return [
        next((us for first, us in reversed(written) if first <= each), UNKNOWN_US)
        for each in range(offset, end)
    ]


@given(WRITTEN, LISTS, *LIMITS)
def test_each_record_has_the_last_time_before_it(
    written: list[tuple[int, int]], lists: list[list[bytes]], max_records: int, max_bytes: int
) -> None:
    at = 5
    for batch in read(batches_of(lists, 5), max_records, max_bytes, written):
        assert batch.times is not None
        assert batch.offset == at
        assert (batch.times[:, 0] > 0).all()
        expected = times_by_record(written, at, batch.end)
        assert np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist() == expected
        at = batch.end
    assert at == 5 + sum(map(len, lists))


HINTS = tuple(HeldRange(StoreLocation(name, ("grpc://127.0.0.1:1",)), 0, 60) for name in "AB")


@pytest.mark.parametrize(
    ("fetch", "kinds"),
    [
        ("local", [LocalLogSource, LocalLogSource]),
        ("flight", [FlightSource, FlightSource]),
        ("mesh", [MeshSource]),
        ("auto", [LocalLogSource, LocalLogSource, FlightSource, FlightSource, MeshSource]),
    ],
)
def test_sources(fetch: str, kinds: list[type]) -> None:
    options, wanted = (
        SourceOptions.of({"subscribe": "t", "fetch": fetch}),
        OffsetRange(*TP, 0, 60, HINTS),
    )
    found = open_sources(wanted, options, MemoryReader().connect, times=False)
    assert [type(source) for source in found] == kinds


@pytest.mark.parametrize(
    ("location", "says"),
    [
        (StoreLocation("A", ()), "does not report its directory"),
        (StoreLocation("A", (), "/nowhere", "another", "s"), "on another machine"),
        (StoreLocation("A", (), "/nowhere", this_machine(), "s"), "cannot read /nowhere"),
    ],
)
def test_the_reason_why_a_log_is_not_local(location: StoreLocation, says: str) -> None:
    given = {"subscribe": "t", "fetch": "local", "fetchtimeoutms": "1"}
    wanted = OffsetRange(*TP, 0, 60, (HeldRange(location, 0, 60),))
    with pytest.raises(FetchError, match=rf"fetch = local: the log of store A: .*{says}"):
        list(fetch([wanted], SourceOptions.of(given), MemoryReader().connect, times=False))


def test_each_run_of_files_is_a_source(tmp_path: Path) -> None:
    archived(tmp_path, A, 30)
    archived(tmp_path, A, 60, start=40)

    def known(tp: TopicPartition, start: int, end: int) -> list[range]:
        found = current_archive_sources(str(tmp_path), OffsetRange(*tp, start, end))
        return [each.known for each in found]

    assert known(A, 0, 100) == [range(30), range(40, 60)]
    assert known(A, 25, 40) == [range(24, 30)]
    assert known(B, 0, 100) == []
    [source] = current_archive_sources(str(tmp_path), OffsetRange(*A, 40, 60))
    assert source.life_before(60) == NO_LIFE
    assert source.name == f"the archive at {tmp_path}"
    assert source.heads(A.topic) == [PartitionInfo(*A, 40, 60)]
    assert source.heads("other") == []
    [first, second] = source.read(OffsetRange(*A, 45, 50))
    assert (first.offset, first.end, second.end) == (45, 48, 50)
