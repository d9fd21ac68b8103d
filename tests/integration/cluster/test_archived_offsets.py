"""Queries over an archive and stores that have trimmed their first records, as one topic."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dafka_core.archive.archive import Archive
from dafka_core.archive.archive_writer import ArchiveWriter, Wanted
from dafka_core.archive.layout import ArchiveError
from dafka_core.errors import StoreUnreachableError
from dafka_core.model.envelope import closed
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.names import text_of
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.errors import FetchError, HistoryReplacedError, RetentionAheadError
from tests.integration.archive.records import BEGIN_US, HOUR_US, batch, content
from tests.integration.cluster.stores import A, B, Batch, Logged, Mesh, Patch, Serve, fail
from tests.unit.dafka_spark.streams import Query, positions, reader, rows

FETCH = pytest.mark.parametrize("fetch", ["local", "flight", "auto"])


class Archived:
    """A store with offsets 40 to 60, an archive with 0 to 40; each record is an hour later."""

    def __init__(self, serve: Serve, directory: Path) -> None:
        self.store, self.directory = serve("one"), directory
        self.log, self.mesh = self.store.log, Mesh([self.store])
        self.append(A, 60)
        self.move(A, 40)

    def append(self, tp: TopicPartition, end: int) -> None:
        self.log.append([batch(tp, self.log.end(tp), end)])

    def move(self, tp: TopicPartition, end: int, *, trims: bool = True) -> None:
        """Archive and trim records, as a store does."""
        info = self.log.info(tp)
        assert info is not None
        wanted = Wanted(tp, info.earliest, end, info.life)
        writer = ArchiveWriter(self.directory, tp.topic)
        added = writer.archive([wanted], lambda each: self.log.read(tp, each.start, each.end))
        assert added.failed == {}
        if trims:
            self.log.trim(tp, end)

    def remove_day(self, day: int) -> None:
        shutil.rmtree(self.directory / "topic=t" / f"day=2026-01-0{day}")

    def query(self, **given: str) -> Batch:
        return Batch(self.mesh, archive=str(self.directory), **given)

    def offsets(self, **given: str) -> list[int]:
        """Return the offsets of the rows of a batch query, in order."""
        found = self.query(**given).rows()
        assert all(row["value"] == content(row["offset"]) for row in found)
        return [row["offset"] for row in found]

    def stream(self, **given: str) -> Query:
        return Query(reader(self.mesh, archive=str(self.directory), **given))


@pytest.fixture
def topic(serve: Serve, tmp_path: Path) -> Archived:
    return Archived(serve, tmp_path / "archive")


def hour(number: float) -> str:
    return str((BEGIN_US + int(number * HOUR_US)) // 1000)


@FETCH
def test_a_batch_reads_both_as_one_topic(topic: Archived, serve: Serve, fetch: str) -> None:
    assert topic.offsets(fetch=fetch) == [*range(60)]
    other = serve("other")  # it has some records that the archive has, too
    other.log.append([batch(A, 0, 60)])
    other.log.trim(A, 15)
    topic.mesh.served.append(other)
    small = {"maxRecordsPerPartition": "7", "maxRecordsPerBatch": "3"}
    assert topic.offsets(fetch=fetch, **small) == [*range(60)]


def test_columns_from_the_archive_are_those_of_stores(topic: Archived) -> None:
    contents = [closed(b"v", b"k", [("h", b"1"), ("n", None)]), closed(None, b"k"), b"", b"bare"]
    odd = TopicPartition(text_of(b"a/\xff="), text_of(b"../\x80"))
    topic.store.append(odd, contents)
    query = topic.query(subscribe=r"a/\xff=", includeHeaders="true")
    before = query.rows()
    topic.move(odd, 3)
    assert query.rows() == before
    assert query.offsets() == {r"../\x80": [*range(4)]}


@pytest.mark.parametrize("fetch", ["auto", "flight"])
def test_a_topic_of_the_archive_alone(topic: Archived, serve: Serve, fetch: str) -> None:
    topic.mesh.served = [serve("empty")]
    assert topic.offsets(fetch=fetch) == [*range(40)]
    assert topic.offsets(fetch=fetch, startingTimestamp=hour(7)) == [*range(7, 40)]


@FETCH
def test_holes_are_lost_and_hide_nothing_behind_them(
    topic: Archived, fetch: str, logged: Logged
) -> None:
    """Between archive and stores, and in the archive, but not before its first record."""

    def lost() -> tuple[int, int | None]:
        with pytest.raises(RetentionAheadError) as caught:
            topic.offsets(fetch=fetch)
        return caught.value.wanted, caught.value.lost_end

    topic.remove_day(1)
    assert topic.offsets(fetch=fetch) == [*range(24, 60)]  # expired: not lost
    topic.log.trim(A, 50)
    assert lost() == (40, 50)
    found = topic.offsets(fetch=fetch, failOnDataLoss="false")
    assert found == [*range(24, 40), *range(50, 60)]
    assert "offsets 40 to 50 (exclusive) are left out" in logged.text
    topic.append(A, 100)
    topic.move(A, 90)
    topic.remove_day(3)
    assert lost() == (40, 72)
    found = topic.offsets(fetch=fetch, failOnDataLoss="false")
    assert found == [*range(24, 40), *range(72, 100)]


@FETCH
def test_the_archive_changes_after_the_plan(topic: Archived, fetch: str) -> None:
    """More records are archived, and then a day is removed."""
    query = topic.query(fetch=fetch, failOnDataLoss="false")
    tasks = query.partitions()
    topic.move(A, 55)
    assert query.offsets(tasks) == {"A": [*range(60)]}
    topic.remove_day(1)
    assert query.offsets(tasks) == {"A": [*range(24, 60)]}


@FETCH
def test_a_damaged_file_always_fails(topic: Archived, fetch: str) -> None:
    for path in topic.directory.glob("topic=t/day=2026-01-01/*.parquet"):
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FetchError, match=r"the archive at .*cannot be read"):
        topic.offsets(fetch=fetch, failOnDataLoss="false")
    topic.directory = topic.directory / "missing"
    with pytest.raises(ArchiveError, match="it is not an archive"):
        topic.query(fetch=fetch).partitions()


def test_conditions_apply_to_both_and_narrow_the_ranges(topic: Archived) -> None:
    for where, spans, read in (
        ("value IN ('value 7', 'value 50')", [(0, 60)], [7, 50]),
        ("offset >= 20 AND offset < 22", [(20, 22)], [20, 21]),
        ("timestamp >= '2026-01-02T06:00:00Z' AND offset < 45", [(24, 45)], [*range(30, 45)]),
        ("timestamp >= '2026-01-03T02:00:00Z'", [(50, 60)], [*range(50, 60)]),
        ("timestamp < '2026-01-01T02:00:00Z'", [(0, 24)], [0, 1]),
        ("timestamp < '2026-01-03T02:00:00Z'", [(0, 50)], [*range(50)]),
        ("timestamp < '2025-01-03T02:00:00Z'", [], []),
        ("partition = 'none'", [], []),
    ):
        ranges = topic.query(where=where).ranges()
        assert [(each.start, each.end) for each in ranges] == spans, where
        assert topic.offsets(where=where) == read, where


def test_a_query_starts_at_a_time(topic: Archived) -> None:
    for hours, first in (-5, 0), (7, 7), (39.5, 40), (41, 41), (55, 55):
        assert topic.offsets(startingTimestamp=hour(hours)) == [*range(first, 60)], hours


def test_a_newer_history_ends_where_it_does(topic: Archived) -> None:
    """A newer producer has taken over without records that are archived."""
    old = Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 20, old.digest)
    values = [content(offset) for offset in range(30)]
    topic.log.append([RecordBatch(B, 0, Values.of(values), epoch=old)])
    topic.move(B, 30, trims=False)
    assert topic.log.write([SetAside(B, 20)]) == [None]
    topic.log.append([RecordBatch(B, 20, Values.of([b"new"] * 5), epoch=new)])
    topic.log.trim(B, 10)

    def contents(**given: str) -> list[bytes]:
        return [row["value"] for row in topic.query(assign='{"t": ["B"]}', **given).rows()]

    assert contents() == [*values[:20], *[b"new"] * 5]
    topic.log.trim(B, 22)  # by a store without an archive
    with pytest.raises(HistoryReplacedError, match="offset 20"):
        contents()
    assert contents(failOnDataLoss="false") == [*values[:22], *[b"new"] * 3]


def test_a_stream_behind_retention_continues_in_the_archive(topic: Archived, patch: Patch) -> None:
    """And another reader plans the same tasks for the repeated batch."""
    query, again = topic.stream(), topic.stream()
    assert query.read() == {"A": [*range(60)]}
    before = query.stream.partitions(query.start, query.end)
    topic.move(A, 60)
    assert again.stream.partitions(query.start, query.end) == before
    for each in (query, again):
        assert rows(each.stream, before) == {"A": [*range(60)]}
    topic.append(A, 90)
    topic.append(B, 30)
    topic.move(A, 85)
    topic.move(B, 20)
    assert query.read() == {"A": [*range(60, 90)], "B": [*range(30)]}
    assert query.read() == {}
    # Without a trim the archive has no news, and is not read.
    patch.delattr(Archive, "held")
    topic.append(A, 95)
    assert query.read() == {"A": [*range(90, 95)]}


def test_the_archive_does_not_answer_for_a_store(topic: Archived, patch: Patch) -> None:
    fail(patch, "offset_for_times")
    with pytest.raises(StoreUnreachableError):
        topic.offsets(startingTimestamp=hour(50), fetchTimeoutMs="300")


def test_a_later_partition_of_a_stream_from_a_time_starts_in_the_archive(topic: Archived) -> None:
    """Its store has trimmed some of the records since then."""
    query = topic.stream(startingTimestamp=hour(25))
    assert positions(query.end) == {"A": 25}
    topic.append(B, 60)
    topic.move(B, 30)
    assert query.read()["B"] == [*range(25, 60)]
