"""Queries over an archive and stores that have given up their first records, as one topic."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dafka_core.archive.archive_writer import ArchiveWriter, Wanted
from dafka_core.archive.layout import ArchiveError
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
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.archive.records import BEGIN_US, HOUR_US, batch, content
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, json_round

A = TopicPartition("t", "A" * 32)
B = TopicPartition("t", "B" * 32)
WAYS = ["local", "flight", "auto"]
Rows = list[tuple[str, int]]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def archived(directory: Path, store: Served, tp: TopicPartition, end: int, start: int = 0) -> None:
    """As a store does, which gives up the records then."""

    def read(wanted: Wanted) -> list[RecordBatch]:
        return store.log.read(wanted.tp, wanted.start, wanted.end)

    info = store.log.info(tp)
    assert info is not None
    added = ArchiveWriter(directory, tp.topic).archive([Wanted(tp, start, end, info.life)], read)
    assert added.failed == ()
    store.log.trim(tp, end)


@pytest.fixture
def one(serve: Serve, archive: Path) -> Served:
    """A store with offsets 40 to 60, an archive with what is before; each record an hour later."""
    store = serve("one")
    store.log.append([batch(A, 0, 60)])
    archived(archive, store, A, 40)
    return store


def query(store: Served | HeardOf, archive: Path, **given: str) -> DafkaBatchReader:
    options = {"subscribe": "t", "fetchTimeoutMs": "10000", "archive": str(archive), **given}
    source = store if isinstance(store, HeardOf) else HeardOf([store])
    return DafkaBatchReader(full(), SourceOptions.of(options).for_batch(), source.connect)


def rows(reader: DafkaBatchReader) -> Rows:
    found: Rows = []
    for part in reader.partitions():
        for each in reader.read(part):
            found += zip(each["partition"].to_pylist(), each["offset"].to_pylist(), strict=True)
            for offset, value in zip(each["offset"], each["value"], strict=True):
                assert value.as_py() == content(offset.as_py())
    return found


def of(tp: TopicPartition, *spans: range) -> Rows:
    return [(tp.partition, offset) for span in spans for offset in span]


@pytest.mark.parametrize("fetch", WAYS)
def test_a_batch_reads_both_as_one_topic(one: Served, archive: Path, fetch: str) -> None:
    assert rows(query(one, archive, fetch=fetch)) == of(A, range(60))
    small = query(one, archive, fetch=fetch, maxRecordsPerPartition="7", maxRecordsPerBatch="3")
    assert rows(small) == of(A, range(60))


def test_what_both_have_comes_once(one: Served, archive: Path, serve: Serve) -> None:
    other = serve("other")
    other.log.append([batch(A, 0, 60)])
    other.log.trim(A, 15)
    assert rows(query(HeardOf([one, other]), archive)) == of(A, range(60))


def test_columns_from_the_archive_are_those_of_stores(serve: Serve, archive: Path) -> None:
    store = serve("one")
    contents = [closed(b"v", b"k", [("h", b"1"), ("n", None)]), closed(None, b"k"), b"", b"bare"]
    store.append(A, contents)
    options = {"subscribe": "t", "includeHeaders": "true", "archive": str(archive)}

    def table() -> list[dict[str, object]]:
        made = SourceOptions.of(options).for_batch()
        reader = DafkaBatchReader(full(headers=True), made, HeardOf([store]).connect)
        batches = (each for part in reader.partitions() for each in reader.read(part))
        return [row for each in batches for row in each.to_pylist()]

    archive.mkdir()
    (archive / "_dafka").mkdir()
    before = table()
    archived(archive, store, A, 4)
    assert store.log.info(A).earliest == 4  # type: ignore[union-attr]
    assert table() == before
    assert len(before) == 4


def test_a_topic_that_stores_have_no_more(one: Served, archive: Path, serve: Serve) -> None:
    empty = serve("empty")
    assert rows(query(empty, archive)) == of(A, range(40))
    assert rows(query(empty, archive, fetch="flight")) == of(A, range(40))


@pytest.mark.parametrize("fetch", WAYS)
def test_a_hole_between_archive_and_stores_is_lost(
    one: Served, archive: Path, fetch: str, caplog: pytest.LogCaptureFixture
) -> None:
    one.log.trim(A, 50)
    with pytest.raises(RetentionAheadError) as lost:
        rows(query(one, archive, fetch=fetch))
    assert (lost.value.wanted, lost.value.lost_end) == (40, 50)
    assert "[DAFKA_RETENTION_AHEAD]" in str(lost.value)
    with caplog.at_level(logging.WARNING):
        found = rows(query(one, archive, fetch=fetch, failOnDataLoss="false"))
    assert found == of(A, range(40), range(50, 60))
    assert "offsets 40 to 50 (exclusive) are left out" in caplog.text


@pytest.mark.parametrize("fetch", WAYS)
def test_a_hole_in_the_archive_hides_nothing_behind_it(
    one: Served, archive: Path, fetch: str
) -> None:
    shutil.rmtree(archive / "topic=t" / "day=2026-01-01")
    assert rows(query(one, archive, fetch=fetch)) == of(A, range(24, 60))  # expired: not lost
    one.log.append([batch(A, 60, 100)])
    archived(archive, one, A, 90, start=40)
    shutil.rmtree(archive / "topic=t" / "day=2026-01-03")
    with pytest.raises(RetentionAheadError) as lost:
        rows(query(one, archive, fetch=fetch))
    assert (lost.value.wanted, lost.value.lost_end) == (48, 72)
    found = rows(query(one, archive, fetch=fetch, failOnDataLoss="false"))
    assert found == of(A, range(24, 48), range(72, 100))


@pytest.mark.parametrize("fetch", WAYS)
def test_what_is_archived_after_the_plan_is_found(one: Served, archive: Path, fetch: str) -> None:
    reader = query(one, archive, fetch=fetch)
    parts = reader.partitions()
    archived(archive, one, A, 55, start=40)
    found = [o for part in parts for each in reader.read(part) for o in each["offset"].to_pylist()]
    assert found == list(range(60))


def test_a_day_that_is_removed_after_the_plan_is_lost(one: Served, archive: Path) -> None:
    reader = query(one, archive, failOnDataLoss="false")
    parts = reader.partitions()
    shutil.rmtree(archive / "topic=t" / "day=2026-01-01")
    found = [o for part in parts for each in reader.read(part) for o in each["offset"].to_pylist()]
    assert found == list(range(24, 60))


@pytest.mark.parametrize("fetch", WAYS)
def test_a_damaged_file_is_no_loss_that_may_be_left_out(
    one: Served, archive: Path, fetch: str
) -> None:
    for path in archive.glob("topic=t/day=2026-01-01/*.parquet"):
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FetchError, match=r"the archive at .*cannot be read"):
        rows(query(one, archive, fetch=fetch, failOnDataLoss="false"))


def test_no_archive_is_an_error_before_anything_is_read(one: Served, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        query(one, tmp_path / "archve").partitions()


def test_conditions_hold_for_both(one: Served, archive: Path) -> None:
    assert rows(query(one, archive, where="value IN ('value 7', 'value 50')")) == of(
        A, range(7, 8), range(50, 51)
    )
    found = rows(query(one, archive, where="timestamp >= '2026-01-02T06:00:00Z' AND offset < 45"))
    assert found == of(A, range(30, 45))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset >= 20 AND offset < 22", [(20, 22)]),
        ("timestamp >= '2026-01-02T06:00:00Z'", [(24, 60)]),
        ("timestamp >= '2026-01-03T02:00:00Z'", [(50, 60)]),
        ("timestamp < '2026-01-01T02:00:00Z'", [(0, 24)]),
        ("timestamp < '2026-01-03T02:00:00Z'", [(0, 50)]),
        ("timestamp < '2025-01-03T02:00:00Z'", []),
        ("partition = 'none'", []),
    ],
)
def test_conditions_narrow_what_is_read(
    one: Served, archive: Path, where: str, expected: list[tuple[int, int]]
) -> None:
    parts: list[Any] = query(one, archive, where=where).partitions()
    assert [(part.start, part.end) for part in parts] == expected


@pytest.mark.parametrize(("hours", "first"), [(-5, 0), (7, 7), (39.5, 40), (41, 41), (55, 55)])
def test_a_query_starts_at_a_time(one: Served, archive: Path, hours: float, first: int) -> None:
    time_ms = str((BEGIN_US + int(hours * HOUR_US)) // 1000)
    assert rows(query(one, archive, startingTimestamp=time_ms)) == of(A, range(first, 60))


def test_a_time_in_what_only_the_archive_has(archive: Path, one: Served, serve: Serve) -> None:
    time_ms = str((BEGIN_US + 7 * HOUR_US) // 1000)
    found = rows(query(serve("empty"), archive, startingTimestamp=time_ms))
    assert found == of(A, range(7, 40))


def test_odd_names(serve: Serve, archive: Path) -> None:
    odd = TopicPartition(text_of(b"a/\xff="), text_of(b"../\x80"))
    store = serve("one")
    store.log.append([batch(odd, 0, 10)])
    archived(archive, store, odd, 6)
    found = rows(query(store, archive, subscribe=r"a/\xff="))
    assert found == [(r"../\x80", offset) for offset in range(10)]


def test_a_newer_history_ends_where_it_does(serve: Serve, archive: Path) -> None:
    """What a newer producer has gone on without is archived, and not the partition's any more."""
    old = Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 20, old.digest)
    store = serve("one")
    values = [content(offset) for offset in range(30)]
    store.log.append([RecordBatch(A, 0, Values.of(values), epoch=old)])

    def read(wanted: Wanted) -> list[RecordBatch]:
        return store.log.read(wanted.tp, wanted.start, wanted.end)

    ArchiveWriter(archive, "t").archive([Wanted(A, 0, 30, old.life)], read)
    assert store.log.write([SetAside(A, 20)]) == [None]
    store.log.append([RecordBatch(A, 20, Values.of([b"new"] * 5), epoch=new)])
    store.log.trim(A, 10)

    def contents(**given: str) -> list[bytes]:
        reader = query(store, archive, **given)
        batches = (each for part in reader.partitions() for each in reader.read(part))
        return [value for each in batches for value in each["value"].to_pylist()]

    assert contents() == [*values[:20], *[b"new"] * 5]
    store.log.trim(A, 22)  # by a store without an archive
    with pytest.raises(HistoryReplacedError, match="offset 20"):
        contents()
    assert contents(failOnDataLoss="false") == [*values[:22], *[b"new"] * 3]


@pytest.fixture
def stream(one: Served, archive: Path) -> DafkaMicroBatchStream:
    given = {"subscribe": "t", "startingOffsets": "earliest", "fetchTimeoutMs": "10000"}
    options = SourceOptions.of({**given, "archive": str(archive)}).for_stream()
    return DafkaMicroBatchStream(full(), options, HeardOf([one]).connect)


def streamed(stream: DafkaMicroBatchStream, start: Any, end: Any) -> Iterator[int]:
    for part in stream.partitions(json_round(start), json_round(end)):
        for each in stream.read(part):
            yield from each["offset"].to_pylist()


def test_a_stream_begins_in_the_archive_and_goes_on_in_the_stores(
    one: Served, archive: Path, stream: DafkaMicroBatchStream
) -> None:
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert list(streamed(stream, start, end)) == list(range(60))
    one.log.append([batch(A, 60, 80), batch(B, 0, 30)])
    archived(archive, one, B, 20)
    later = stream.latestOffset(end, ALL)
    found = sorted(streamed(stream, end, later))
    assert found == sorted([*range(60, 80), *range(30)])
    assert stream.latestOffset(json_round(later), ALL) == later


def test_a_stream_that_is_overtaken_by_retention_goes_on_in_the_archive(
    one: Served, archive: Path, stream: DafkaMicroBatchStream
) -> None:
    start = json_round(stream.initialOffset())
    end = stream.latestOffset(start, ALL)
    archived(archive, one, A, 60, start=40)
    assert list(streamed(stream, start, end)) == list(range(60))
    one.log.append([batch(A, 60, 90)])
    archived(archive, one, A, 85, start=60)
    later = stream.latestOffset(end, ALL)
    assert list(streamed(stream, end, later)) == list(range(60, 90))


def test_a_repeated_batch_has_the_same_tasks(
    one: Served, archive: Path, stream: DafkaMicroBatchStream
) -> None:
    start = json_round(stream.initialOffset())
    end = json_round(stream.latestOffset(start, ALL))
    before = stream.partitions(start, end)
    archived(archive, one, A, 55, start=40)
    again = DafkaMicroBatchStream(full(), stream._options, HeardOf([one]).connect)
    assert again.partitions(start, end) == before
    assert list(streamed(again, start, end)) == list(range(60))


def test_the_archive_is_looked_at_when_stores_have_given_something_up(
    one: Served, archive: Path, stream: DafkaMicroBatchStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = stream.latestOffset(stream.initialOffset(), ALL)
    monkeypatch.setattr(stream._offsets._archive, "held", None)  # nobody looks
    one.log.append([batch(A, 60, 70)])
    assert stream.latestOffset(end, ALL) != end
