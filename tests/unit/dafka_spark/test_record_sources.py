"""The sources of option fetch, and the batches that the mesh source makes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.flight.store_location import StoreLocation, this_machine
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import UNKNOWN_US, PartitionInfo, RecordBatch, TopicPartition
from dafka_spark.errors import FetchError
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import OffsetRange, StoreRange
from dafka_spark.source.partition_reader import MeshSource, archive_sources, fetch, open_sources
from tests.integration.archive.records import A as ARCHIVED
from tests.integration.archive.records import B, archived
from tests.memory_reader import MemoryReader

A = TopicPartition("t", "A")
Written = list[tuple[int, int]]


class BatchReader(MemoryReader):
    """Returns batches of these values, the first one at offset 5."""

    def __init__(self, lists: list[list[bytes]]) -> None:
        super().__init__()
        self.lists = lists

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        for values in self.lists:
            yield RecordBatch.of(A, start, values)
            start += len(values)


def read(
    lists: list[list[bytes]], max_records: int, max_bytes: int, written: Written | None = None
) -> list[RecordBatch]:
    """Return the batches of the mesh source, with times if ``written`` is given."""
    source = BatchReader(lists)
    source.written = written or []
    limits = {"maxrecordsperbatch": str(max_records), "maxbytesperbatch": str(max_bytes)}
    options = SourceOptions.of({"subscribe": "t", **limits})
    mesh = MeshSource(source.connect, options, written is not None)
    return list(mesh.read(OffsetRange(*A, 5, 5 + sum(map(len, lists)))))


def time_of(written: Written, offset: int) -> int:
    return next((us for first, us in reversed(written) if first <= offset), UNKNOWN_US)


@given(
    st.lists(st.lists(st.binary(max_size=12), min_size=1, max_size=9), max_size=9),
    st.integers(1, 12),
    st.integers(1, 30),
    st.none() | st.dictionaries(st.integers(0, 40), st.integers(0, 10**16)).map(dict.items),
)
def test_batches_keep_every_record_with_its_time_and_the_limits(
    lists: list[list[bytes]], max_records: int, max_bytes: int, times: Written | None
) -> None:
    written = None if times is None else sorted(times)
    batches = read(lists, max_records, max_bytes, written)
    expected = [value for values in lists for value in values]
    assert [value for batch in batches for value in batch.values] == expected
    position = 5
    for batch in batches:
        assert (batch.tp, batch.offset) == (A, position)
        assert 1 <= batch.count <= max_records
        assert batch.values.size_bytes == sum(map(len, batch.values))
        assert batch.values.size_bytes <= max_bytes or batch.count == 1
        if written is None:
            assert batch.times is None
        else:
            assert batch.times is not None
            assert (batch.times[:, 0] > 0).all()
            found = np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist()
            assert found == [time_of(written, each) for each in range(position, batch.end)]
        position = batch.end


def test_option_fetch_selects_the_sources() -> None:
    stores = [StoreRange(StoreLocation(name, ("grpc://127.0.0.1:1",)), 0, 60) for name in "AB"]
    wanted = OffsetRange(*A, 0, 60, tuple(stores))

    def names(fetch: str) -> list[str]:
        options = SourceOptions.of({"subscribe": "t", "fetch": fetch})
        sources = open_sources(wanted, options, MemoryReader().connect, times=False)
        return [source.name for source in sources]

    assert names("local") == ["the log of store A", "the log of store B"]
    assert names("flight") == ["store A by Arrow Flight", "store B by Arrow Flight"]
    assert names("mesh") == ["the mesh"]
    assert names("auto") == names("local") + names("flight") + names("mesh")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (StoreLocation("A", ()), "does not report its directory"),
        (StoreLocation("A", (), "/nowhere", "another", "s"), "on another machine"),
        (StoreLocation("A", (), "/nowhere", this_machine(), "s"), "cannot read /nowhere"),
    ],
)
def test_the_error_names_the_reason_why_a_log_is_not_local(
    location: StoreLocation, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"subscribe": "t", "fetch": "local", "fetchtimeoutms": "1"}
    stores = (StoreRange(location, 0, 60),)
    ranges = [OffsetRange(*tp, 0, 60, stores) for tp in (A, TopicPartition("t", "B"))]
    with pytest.raises(FetchError, match=rf"fetch = local: the log of store A: .*{reason}"):
        list(fetch(ranges, SourceOptions.of(given), MemoryReader().connect, times=False))
    assert caplog.text == ""


def test_each_run_of_files_is_a_source(tmp_path: Path) -> None:
    archived(tmp_path, ARCHIVED, 30)
    archived(tmp_path, ARCHIVED, 60, start=40)

    def known(tp: TopicPartition, start: int, end: int) -> list[range]:
        found = archive_sources(str(tmp_path), OffsetRange(*tp, start, end))
        return [each.known for each in found]

    assert known(ARCHIVED, 0, 100) == [range(30), range(40, 60)]
    assert known(ARCHIVED, 25, 40) == [range(24, 30)]
    assert known(B, 0, 100) == []
    [source] = archive_sources(str(tmp_path), OffsetRange(*ARCHIVED, 40, 60))
    assert source.life_before(60) == NO_LIFE
    assert source.name == f"the archive at {tmp_path}"
    assert source.heads(ARCHIVED.topic) == [PartitionInfo(*ARCHIVED, 40, 60)]
    assert source.heads("other") == []
    [first, second] = source.read(OffsetRange(*ARCHIVED, 45, 50))
    assert (first.offset, first.end, second.end) == (45, 48, 50)
