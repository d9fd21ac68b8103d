"""Queries over an archive and stores that have trimmed their first records, as one topic."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dafka_core.archive.archive import Archive
from dafka_core.archive.archive_writer import ArchiveWriter, Wanted
from dafka_core.archive.layout import ArchiveError
from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope import closed
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.names import text_of
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.errors import FetchError, HistoryReplacedError, RetentionAheadError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.integration.archive.records import BEGIN_US, HOUR_US, batch, content
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import Query, positions, reader, rows

A = TopicPartition("t", "A" * 32)
B = TopicPartition("t", "B" * 32)
WAYS = ["local", "flight", "auto"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def archived(
    directory: Path,
    store: Served,
    tp: TopicPartition,
    end: int,
    start: int = 0,
    *,
    trims: bool = True,
) -> None:
    """Archive and trim records, as a store does."""

    def read(wanted: Wanted) -> list[RecordBatch]:
        return store.log.read(wanted.tp, wanted.start, wanted.end)

    info = store.log.info(tp)
    assert info is not None
    added = ArchiveWriter(directory, tp.topic).archive([Wanted(tp, start, end, info.life)], read)
    assert added.failed == ()
    if trims:
        store.log.trim(tp, end)


@pytest.fixture
def one(serve: Serve, archive: Path) -> Served:
    """A store with offsets 40 to 60, an archive with 0 to 40; each record is an hour later."""
    store = serve("one")
    store.log.append([batch(A, 0, 60)])
    archived(archive, store, A, 40)
    return store


def query(archive: Path, *stores: Served, **given: str) -> DafkaBatchReader:
    options = {"subscribe": "t", "fetchTimeoutMs": "10000", "archive": str(archive), **given}
    schema = full(headers="includeHeaders" in given)
    return DafkaBatchReader(schema, SourceOptions.of(options).for_batch(), HeardOf(stores).connect)


def read(query: DafkaBatchReader, tasks: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a batch."""
    tasks = query.partitions() if tasks is None else tasks
    return [row for task in tasks for each in query.read(task) for row in each.to_pylist()]


def offsets(archive: Path, *stores: Served, **given: str) -> list[int]:
    """Return the offsets of the rows of a batch, in order."""
    found = read(query(archive, *stores, **given))
    assert all(row["value"] == content(row["offset"]) for row in found)
    return [row["offset"] for row in found]


@pytest.mark.parametrize("fetch", WAYS)
def test_a_batch_reads_both_as_one_topic(one: Served, archive: Path, fetch: str) -> None:
    small = {"maxRecordsPerPartition": "7", "maxRecordsPerBatch": "3"}
    for given in {}, small:
        assert offsets(archive, one, fetch=fetch, **given) == [*range(60)]


def test_records_of_both_come_once(one: Served, archive: Path, serve: Serve) -> None:
    other = serve("other")
    other.log.append([batch(A, 0, 60)])
    other.log.trim(A, 15)
    assert offsets(archive, one, other) == [*range(60)]


def test_columns_from_the_archive_are_those_of_stores(serve: Serve, archive: Path) -> None:
    store = serve("one")
    contents = [closed(b"v", b"k", [("h", b"1"), ("n", None)]), closed(None, b"k"), b"", b"bare"]
    store.append(A, contents)
    (archive / "_dafka").mkdir(parents=True)
    before = read(query(archive, store, includeHeaders="true"))
    archived(archive, store, A, 4)
    assert read(query(archive, store, includeHeaders="true")) == before
    assert len(before) == 4


@pytest.mark.parametrize("fetch", ["auto", "flight"])
def test_a_topic_of_the_archive_alone(one: Served, archive: Path, serve: Serve, fetch: str) -> None:
    empty, time_ms = serve("empty"), str((BEGIN_US + 7 * HOUR_US) // 1000)
    assert offsets(archive, empty, fetch=fetch) == [*range(40)]
    assert offsets(archive, empty, fetch=fetch, startingTimestamp=time_ms) == [*range(7, 40)]


@pytest.mark.parametrize("fetch", WAYS)
def test_a_hole_between_archive_and_stores_is_lost(
    one: Served, archive: Path, fetch: str, caplog: pytest.LogCaptureFixture
) -> None:
    one.log.trim(A, 50)
    with pytest.raises(RetentionAheadError) as lost:
        offsets(archive, one, fetch=fetch)
    assert (lost.value.wanted, lost.value.lost_end) == (40, 50)
    found = offsets(archive, one, fetch=fetch, failOnDataLoss="false")
    assert found == [*range(40), *range(50, 60)]
    assert "offsets 40 to 50 (exclusive) are left out" in caplog.text


@pytest.mark.parametrize("fetch", WAYS)
def test_a_hole_in_the_archive_hides_nothing_behind_it(
    one: Served, archive: Path, fetch: str
) -> None:
    shutil.rmtree(archive / "topic=t" / "day=2026-01-01")
    assert offsets(archive, one, fetch=fetch) == [*range(24, 60)]  # expired: not lost
    one.log.append([batch(A, 60, 100)])
    archived(archive, one, A, 90, start=40)
    shutil.rmtree(archive / "topic=t" / "day=2026-01-03")
    with pytest.raises(RetentionAheadError) as lost:
        offsets(archive, one, fetch=fetch)
    assert (lost.value.wanted, lost.value.lost_end) == (48, 72)
    found = offsets(archive, one, fetch=fetch, failOnDataLoss="false")
    assert found == [*range(24, 48), *range(72, 100)]


@pytest.mark.parametrize("fetch", WAYS)
def test_the_archive_changes_after_the_plan(one: Served, archive: Path, fetch: str) -> None:
    """More records are archived, and then a day is removed."""
    batch_query = query(archive, one, fetch=fetch, failOnDataLoss="false")
    tasks = batch_query.partitions()
    archived(archive, one, A, 55, start=40)
    assert [row["offset"] for row in read(batch_query, tasks)] == [*range(60)]
    shutil.rmtree(archive / "topic=t" / "day=2026-01-01")
    assert [row["offset"] for row in read(batch_query, tasks)] == [*range(24, 60)]


@pytest.mark.parametrize("fetch", WAYS)
def test_a_damaged_file_always_fails(one: Served, archive: Path, fetch: str) -> None:
    for path in archive.glob("topic=t/day=2026-01-01/*.parquet"):
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FetchError, match=r"the archive at .*cannot be read"):
        offsets(archive, one, fetch=fetch, failOnDataLoss="false")


def test_a_wrong_directory_fails_the_plan(one: Served, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="it is not an archive"):
        query(tmp_path / "archve", one).partitions()


@pytest.mark.parametrize(
    ("where", "spans", "read"),
    [
        ("value IN ('value 7', 'value 50')", [(0, 60)], [7, 50]),
        ("offset >= 20 AND offset < 22", [(20, 22)], [20, 21]),
        ("timestamp >= '2026-01-02T06:00:00Z' AND offset < 45", [(24, 45)], [*range(30, 45)]),
        ("timestamp >= '2026-01-03T02:00:00Z'", [(50, 60)], [*range(50, 60)]),
        ("timestamp < '2026-01-01T02:00:00Z'", [(0, 24)], [0, 1]),
        ("timestamp < '2026-01-03T02:00:00Z'", [(0, 50)], [*range(50)]),
        ("timestamp < '2025-01-03T02:00:00Z'", [], []),
        ("partition = 'none'", [], []),
    ],
)
def test_conditions_apply_to_both_and_narrow_the_ranges(
    one: Served, archive: Path, where: str, spans: list[tuple[int, int]], read: list[int]
) -> None:
    parts: list[Any] = query(archive, one, where=where).partitions()
    assert [(each.start, each.end) for part in parts for each in part.ranges] == spans
    assert offsets(archive, one, where=where) == read


@pytest.mark.parametrize(("hours", "first"), [(-5, 0), (7, 7), (39.5, 40), (41, 41), (55, 55)])
def test_a_query_starts_at_a_time(one: Served, archive: Path, hours: float, first: int) -> None:
    time_ms = str((BEGIN_US + int(hours * HOUR_US)) // 1000)
    assert offsets(archive, one, startingTimestamp=time_ms) == [*range(first, 60)]


def test_odd_names(serve: Serve, archive: Path) -> None:
    odd = TopicPartition(text_of(b"a/\xff="), text_of(b"../\x80"))
    store = serve("one")
    store.log.append([batch(odd, 0, 10)])
    archived(archive, store, odd, 6)
    found = read(query(archive, store, subscribe=r"a/\xff="))
    assert [(row["partition"], row["offset"]) for row in found] == [
        (r"../\x80", offset) for offset in range(10)
    ]


def test_a_newer_history_ends_where_it_does(serve: Serve, archive: Path) -> None:
    """A newer producer has taken over without records that are archived."""
    old = Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 20, old.digest)
    store = serve("one")
    values = [content(offset) for offset in range(30)]
    store.log.append([RecordBatch(A, 0, Values.of(values), epoch=old)])
    archived(archive, store, A, 30, trims=False)
    assert store.log.write([SetAside(A, 20)]) == [None]
    store.log.append([RecordBatch(A, 20, Values.of([b"new"] * 5), epoch=new)])
    store.log.trim(A, 10)

    def contents(**given: str) -> list[bytes]:
        return [row["value"] for row in read(query(archive, store, **given))]

    assert contents() == [*values[:20], *[b"new"] * 5]
    store.log.trim(A, 22)  # by a store without an archive
    with pytest.raises(HistoryReplacedError, match="offset 20"):
        contents()
    assert contents(failOnDataLoss="false") == [*values[:22], *[b"new"] * 3]


def test_a_stream_behind_retention_continues_in_the_archive(one: Served, archive: Path) -> None:
    """And another reader plans the same tasks for the repeated batch."""
    query, again = (Query(reader(HeardOf([one]), archive=str(archive))) for _ in range(2))
    assert query.read() == {A.partition: [*range(60)]}
    before = query.stream.partitions(query.start, query.end)
    archived(archive, one, A, 60, start=40)
    assert again.stream.partitions(query.start, query.end) == before
    for each in (query, again):
        assert rows(each.stream, before) == {A.partition: [*range(60)]}
    one.log.append([batch(A, 60, 90), batch(B, 0, 30)])
    archived(archive, one, A, 85, start=60)
    archived(archive, one, B, 20)
    assert query.read() == {A.partition: [*range(60, 90)], B.partition: [*range(30)]}
    assert query.read() == {}


def test_the_archive_is_read_again_only_after_a_trim(
    one: Served, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(reader(HeardOf([one]), archive=str(archive)))
    query.read()
    monkeypatch.delattr(Archive, "held")
    one.log.append([batch(A, 60, 70)])
    assert query.read() == {A.partition: [*range(60, 70)]}


def test_the_archive_does_not_answer_for_a_store(
    one: Served, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StoreUnreachableError("one", "it is gone")
    monkeypatch.setattr(StoreClient, "offset_for_times", Mock(side_effect=error))
    time_ms = str((BEGIN_US + 50 * HOUR_US) // 1000)
    with pytest.raises(StoreUnreachableError):
        offsets(archive, one, startingTimestamp=time_ms, fetchTimeoutMs="300")


def test_a_later_partition_of_a_stream_from_a_time_starts_in_the_archive(
    one: Served, archive: Path
) -> None:
    """Its store has trimmed some of the records since then."""
    time_ms = str((BEGIN_US + 25 * HOUR_US) // 1000)
    query = Query(reader(HeardOf([one]), archive=str(archive), startingTimestamp=time_ms))
    assert positions(query.end) == {A.partition: 25}
    one.log.append([batch(B, 0, 60)])
    archived(archive, one, B, 30)
    assert query.read()[B.partition] == [*range(25, 60)]
