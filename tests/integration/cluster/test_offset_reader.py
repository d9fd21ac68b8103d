"""The offsets of a query: the latest and earliest ones of all stores, and those of times."""

import datetime as dt
import shutil
import time
from pathlib import Path

import pytest

from dafka_core.archive.archive import Archive, ArchiveWriter, Wanted
from dafka_core.archive.manifest import ArchiveError
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.model.envelope import closed
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.names import text_of
from dafka_core.model.positions import TIME, Position
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.cluster import timing
from dafka_spark.errors import FetchError, HistoryReplacedError, RetentionAheadError
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.integration.archive.records import BEGIN_US, HOUR_US, batch, content
from tests.integration.cluster.stores import (
    A,
    B,
    Batch,
    C,
    Logged,
    Mesh,
    Patch,
    Serve,
    Served,
    count_requests,
    fail,
    timed,
)
from tests.unit.dafka_spark.streams import ALL, Query, planned, positions, reader, rows, set_clock


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "20000", **given}).for_batch()


def snapshot(mesh: Mesh, *, thorough: bool = False, **given: str) -> OffsetsSnapshot:
    return OffsetReader(options(**given), mesh.connect).snapshot(thorough=thorough)


def holders(mesh: Mesh, **given: str) -> dict[str, tuple[int, int]]:
    """Return the stores with partition A, and their ranges."""
    held = snapshot(mesh, thorough=False, **given).holders(A)
    return {each.location.store: (each.earliest, each.end) for each in held}


# -- snapshots -------------------------------------------------------------------------------------


def test_the_earliest_and_the_furthest_offset_of_all_stores(serve: Serve) -> None:
    ahead = serve("ahead").add(A, 100)
    ahead.log.trim(A, 20)
    mesh = Mesh([ahead])
    assert holders(mesh) == {"ahead": (20, 100)}
    mesh.served.append(serve("behind").add(A, 60).add(TopicPartition("u", "A"), 1))
    assert list(snapshot(mesh).heads.values()) == [PartitionInfo("t", "A", 0, 100)]
    assert holders(mesh) == {"ahead": (20, 100), "behind": (0, 60)}
    ahead.add(A, 1)
    assert snapshot(mesh).heads[A].end == 101
    mesh.served.remove(ahead)
    assert holders(mesh) == {"behind": (0, 60)}
    assert mesh.calls == ["partitions"]  # once over the mesh: all stores serve Flight


def test_stores_without_flight_answer_over_the_mesh(mesh: Mesh) -> None:
    mesh.c_nodes = ["a C node"]
    mesh.add(A, 7)
    mesh.add(B, 3)
    for _ in range(2):
        found = snapshot(mesh).heads.values()
        assert [*found] == [PartitionInfo("t", "A", 0, 7), PartitionInfo("t", "B", 0, 3)]
    assert mesh.calls == ["partitions"] * 2
    assert holders(mesh) == {"one": (0, 5)}


def test_an_unreachable_store_delays_no_snapshot(mesh: Mesh, serve: Serve, patch: Patch) -> None:
    gone = serve("gone").add(A, 9)
    mesh.served.append(gone)
    assert snapshot(mesh).heads[A].end == 9
    gone.stop()
    for _ in range(3):
        assert holders(mesh) == {"one": (0, 5)}
    assert mesh.calls == ["partitions"]
    # The mesh may still reach it: for a thorough snapshot, and for every one after a while.
    mesh.add(A, 9)
    assert snapshot(mesh, thorough=True).heads[A].end == 9
    assert snapshot(mesh).heads[A].end == 5
    patch.setattr(timing, "FLIGHT_FAILURE_S", 0.0)
    assert snapshot(mesh).heads[A].end == 9


def test_a_restarted_store_is_described_anew(one: Served, mesh: Mesh) -> None:
    before = snapshot(mesh).locations[0]
    one.stop()
    one.start()
    assert snapshot(mesh).locations[0].session != before.session
    one.stop()
    one.start(one.port)
    # No announcement changes, but a query that maps logs needs the session.
    assert snapshot(mesh, fetch="local").locations[0].session == one.location.session


def test_without_an_answer_by_flight_only_the_mesh_is_left(
    one: Served, mesh: Mesh, serve: Serve, patch: Patch
) -> None:
    other = serve("other").add(A, 5)
    mesh.add(A, 9)
    with patch.context() as patched:
        patched.setattr(one, "service", other.service)  # it answers with another store's name
        with pytest.raises(StoreUnreachableError, match=r"store one: "):
            snapshot(mesh, fetch="flight")
    one.stop()
    found = snapshot(mesh)
    assert (found.heads[A].end, found.holders(A)) == (9, [])
    with pytest.raises(StoreUnreachableError):
        snapshot(mesh, fetch="flight")
    announced = {"odd": ("http://nowhere",), "other": other.location.locations}
    odd = Mesh([other], ["odd"])
    patch.setattr(odd, "endpoints", lambda: announced)
    assert holders(odd, fetch="flight") == {"other": (0, 5)}
    del announced["other"]
    with pytest.raises(StoreUnreachableError, match=r"store odd: .*grpc://HOST:PORT"):
        snapshot(odd, fetch="flight")


@pytest.mark.parametrize("fetch", ["flight", "local"])
def test_an_impossible_fetch_fails_the_plan(one: Served, fetch: str, patch: Patch) -> None:
    mesh = Mesh([], ["a C node"])
    mesh.add(A, 5)
    with pytest.raises(ConfigError, match=rf"'fetch' = '{fetch}': no store .* serves Arrow Flight"):
        Batch(mesh, fetch=fetch).partitions()
    both = Mesh([one], ["a C node"])
    both.add(TopicPartition("u", "C"), 5)  # the query does not read it
    assert holders(both, fetch=fetch) == {"one": (0, 5)}
    both.add(B, 5)
    for plan in (Batch(both, fetch=fetch).partitions, reader(both, fetch=fetch).initialOffset):
        with pytest.raises(ConfigError, match=r"partition B is only in stores that serve no Arrow"):
            plan()
    location = type(one.location)("one", one.location.locations)
    patch.setattr(one.service.context, "location", location)
    with pytest.raises(ConfigError, match="no store announces a log on this machine"):
        snapshot(Mesh([one]), fetch="local")


def test_flight_alone_names_the_store_that_does_not_answer(mesh: Mesh, serve: Serve) -> None:
    gone = serve("gone").add(B, 5)
    mesh.served.append(gone)
    for tp in (A, B):
        mesh.add(tp, 5)
    gone.stop()
    with pytest.raises(StoreUnreachableError, match="store gone: "):
        Batch(mesh, fetch="flight").partitions()


def test_a_repeated_batch_has_the_same_tasks_at_other_stores(serve: Serve, patch: Patch) -> None:
    """The store with all records has died, and a second store holds a part of them."""
    whole, part = serve("whole").add(A, 100), serve("part").add(A, 45)
    mesh = Mesh([whole, part])
    mesh.add(A, 100)
    stream, replay = (reader(mesh, maxRecordsPerPartition="30") for _ in range(2))
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    plan = stream.partitions(start, end)
    assert planned(stream, start, end) == {("A", first, first + 25) for first in range(0, 100, 25)}
    before = rows(stream, plan)
    whole.stop()
    mesh.served.remove(whole)
    patch.setattr(timing, "SNAPSHOT_MAX_AGE_S", 0.0)
    for planning, begin in (stream, start), (replay, replay.initialOffset()):
        again = planning.partitions(begin, end)
        assert again == plan
        # No plan names a store that is gone, though a snapshot may have been older.
        stores = [[each.location.store for each in task.ranges[0].stores] for task in again]
        assert stores == [["part"], ["part"], [], []]
        assert rows(planning, again) == before == {"A": [*range(100)]}


@pytest.mark.parametrize("fetch", ["local", "flight", "auto"])
def test_a_repeated_batch_reads_what_is_not_selected_any_more(
    mesh: Mesh, serve: Serve, fetch: str
) -> None:
    mesh.served.append(serve("two").add(B, 3).add(TopicPartition("u", "C"), 7))
    stream, again = (reader(mesh, subscribe=each, fetch=fetch) for each in ("t,u", "t"))
    end = stream.latestOffset(stream.initialOffset(), ALL)
    tasks = again.partitions(again.initialOffset(), end)
    expected = {"A": [*range(5)], "B": [*range(3)], "C": [*range(7)]}
    assert rows(again, tasks) == expected


# -- times -----------------------------------------------------------------------------------------

HOUR_MS = HOUR_US // 1_000
T0_MS = BEGIN_US // 1_000
"""The time of the first record: the beginning of 2026."""


def hour(number: float) -> str:
    return str(int(T0_MS + number * HOUR_MS))


def by_time(partition: str, number: float) -> str:
    return f'{{"t": {{"{partition}": {hour(number)}}}}}'


def hourly(store: Served, tp: TopicPartition, count: int, first: int = 0) -> Served:
    """Append one record an hour, from hour ``first`` on."""
    store.add_at(tp, *(int(hour(number)) for number in range(first, first + count)))
    return store


@pytest.fixture
def timed_store(serve: Serve) -> Served:
    """A store with a record an hour in A, ten, and five in B, which begins three hours later."""
    return hourly(hourly(serve("timed"), A, 10), B, 5, 3)


@pytest.fixture
def times(timed_store: Served) -> Mesh:
    return Mesh([timed_store])


def test_bounds_may_be_times(times: Mesh) -> None:
    """A partition without a record so new is read from its end on."""
    for given, a, b in (
        ({"startingTimestamp": hour(4)}, range(4, 10), range(1, 5)),
        ({"startingTimestamp": str(int(hour(4)) + 1)}, range(5, 10), range(2, 5)),
        ({"endingTimestamp": hour(4)}, range(4), range(1)),
        ({"endingTimestamp": hour(99)}, range(10), range(5)),
        ({"startingOffsetsByTimestamp": by_time("A", 8)}, range(8, 10), range(5)),
        ({"endingOffsetsByTimestamp": by_time("B", 4)}, range(10), range(1)),
        (
            {"startingOffsets": "2026-01-01T04:00:00Z", "endingOffsets": "2026-01-01T06:00:00Z"},
            range(4, 6),
            range(1, 3),
        ),
        ({"startingOffsets": "2026-01-01T08:30:00Z"}, range(9, 10), ()),
        ({"startingOffsets": "latest-2"}, range(8, 10), range(3, 5)),
        ({"startingOffsets": '{"t": {"A": "2026-01-01T09:00:00Z", "B": 4}}'}, [9], [4]),
    ):
        expected = {"A": [*a], "B": [*b]}
        found = Batch(times, **given).offsets()
        assert found == {name: each for name, each in expected.items() if each}, given


@pytest.mark.parametrize(
    ("given", "read", "warns"),
    [
        ({"startingTimestamp": hour(9)}, {"A": [9]}, False),
        ({"startingOffsetsByTimestamp": by_time("B", 9)}, {"A": [*range(10)]}, True),
        ({"startingTimestamp": hour(99)}, {}, True),
        ({"startingOffsets": "-1s"}, {}, False),
    ],
)
def test_partitions_without_a_record_so_new(
    timed_store: Served,
    times: Mesh,
    given: dict[str, str],
    read: dict[str, list[int]],
    logged: Logged,
    *,
    warns: bool,
) -> None:
    """An ended producer is normal; where no partition matches at all the time may be wrong."""
    assert Batch(times, **given).offsets() == read
    query = Query(reader(times, **given))
    assert query.read() == read
    assert logged.text.count("no partition has a record of this time or later") == 2 * warns
    hourly(timed_store, B, 1, 100)
    assert query.read() == {"B": [5]}


def test_with_strategy_error_they_fail_as_in_kafkas(times: Mesh) -> None:
    given = {"startingTimestamp": hour(9), "startingOffsetsByTimestampStrategy": "error"}
    error = (
        rf"'startingTimestamp' = '{hour(9)}': topic 't', partition B has no record of "
        r"2026-01-01T09:00:00Z or later; with startingOffsetsByTimestampStrategy = latest"
    )
    for read in (Batch(times, **given).offsets, Query(reader(times, **given)).read):
        with pytest.raises(ConfigError, match=error):
            read()


@pytest.mark.parametrize("ahead_s", [-36_000, 36_000])
def test_ago_is_by_the_clock_of_the_stores(serve: Serve, patch: Patch, ahead_s: int) -> None:
    """The driver's may be wrong by hours."""
    store, now_ms = serve("timed"), time.time_ns() // 1_000_000
    store.add_at(A, now_ms - 2 * HOUR_MS, now_ms - 30 * 60_000, now_ms - 60_000)
    set_clock(patch, ahead_s)
    for text, offset in (("-1h", 1), ("-10m", 2), ("-1d", 0), ("-5s", 3)):
        stream = reader(Mesh([store]), startingOffsets=text)
        assert positions(stream.initialOffset()) == {"A": offset}


@pytest.mark.parametrize(
    ("option", "start", "first"),
    [
        ("startingTimestamp", hour(6), 6),
        ("startingOffsetsByTimestamp", by_time("A", 6), 0),  # as in Kafka's connector
    ],
)
def test_a_stream_starts_there_in_later_partitions_too(
    times: Mesh, serve: Serve, option: str, start: str, first: int
) -> None:
    """Records that are older than the time, and a minute, are left out of them."""
    query = Query(reader(times, **{option: start}))
    times.served.append(hourly(serve("two"), C, 10))
    found = query.read()
    assert (found["A"], found["C"]) == ([*range(6, 10)], [*range(first, 10)])


def test_the_store_with_earlier_records_answers_too(serve: Serve, patch: Patch) -> None:
    """Another one has the same end, and has trimmed the records of the time."""
    whole, trimmed = (hourly(serve(name), A, 10) for name in ("whole", "trimmed"))
    trimmed.log.trim(A, 7)

    def first(*stores: Served, since: int = 3, **given: str) -> int:
        return Batch(Mesh(stores), startingTimestamp=hour(since), **given).offsets()["A"][0]

    assert first(whole, trimmed) == first(trimmed, whole) == 3
    hourly(trimmed, A, 1, 10)  # now it is also the furthest
    assert first(whole, trimmed) == 3
    requests = fail(patch, "offset_for_times", "whole")
    assert first(whole, trimmed, since=8, fetchTimeoutMs="1000") == 8
    assert len(requests) > 1  # it is retried
    with pytest.raises(StoreUnreachableError, match="it is gone"):
        first(whole, trimmed, fetchTimeoutMs="300")


def test_records_after_the_snapshot_do_not_count(timed_store: Served, times: Mesh) -> None:
    offsets = OffsetReader(options(), times.connect)
    before = offsets.snapshot()
    hourly(timed_store, A, 5, 10)
    wanted = {A: Position(TIME, int(hour(12)) * 1_000)}
    assert offsets.offsets_for_times(wanted, before).found == {A: before.heads[A].end}


def test_many_partitions_are_one_request(serve: Serve, patch: Patch) -> None:
    store = serve("timed")
    tps = [TopicPartition("t", f"{number:032X}") for number in range(1_000)]
    store.log.append([timed(tp, 0, T0_MS, T0_MS + HOUR_MS) for tp in tps])
    requests = count_requests(patch, "offset_for_times")
    stream = reader(Mesh([store]), startingTimestamp=hour(0.5))
    assert set(positions(stream.initialOffset()).values()) == {1}
    assert requests == {"offset_for_times": 1}


Spans = dict[str, tuple[int, int]]


def filtered(mesh: Mesh, *conditions: tuple[str, int]) -> Spans:
    """Return the ranges of a batch with conditions on ``timestamp``, in hours since the first."""
    epoch = dt.datetime.fromtimestamp(T0_MS // 1_000, dt.UTC)
    times = [f"timestamp {name} '{epoch + dt.timedelta(hours=at)}'" for name, at in conditions]
    ranges = Batch(mesh, where=" AND ".join(times)).ranges()
    return {each.partition: (each.start, each.end) for each in ranges}


def test_filters_by_time_narrow_the_ranges(times: Mesh) -> None:
    for conditions, expected in (
        ([(">=", 4)], {"A": (4, 10), "B": (1, 5)}),
        ([(">", 4)], {"A": (5, 10), "B": (2, 5)}),
        ([("<", 4)], {"A": (0, 4), "B": (0, 1)}),
        ([("<=", 4)], {"A": (0, 5), "B": (0, 2)}),
        ([(">=", 4), ("<", 6)], {"A": (4, 6), "B": (1, 3)}),
        ([(">=", -5), ("<", 99)], {"A": (0, 10), "B": (0, 5)}),
        ([("<", -5)], {}),
        ([(">=", 8)], {"A": (8, 10)}),
        ([(">=", 99)], {}),
    ):
        assert filtered(times, *conditions) == expected, conditions


def test_a_range_includes_records_that_match_at_any_store(
    timed_store: Served, serve: Serve
) -> None:
    """Another store has stamped the first of the same records at other hours."""
    for number, (count, first, conditions, span) in enumerate(
        (
            (8, 1, [(">=", 4), ("<", 6)], (3, 6)),
            (8, 1, [("<=", 99)], (0, 10)),
            (8, 1, [(">=", 99)], None),
            (2, 0, [(">=", 4), ("<", 6)], (4, 6)),
            (10, -1, [("<", 9)], (0, 10)),
        )
    ):
        other = hourly(serve(f"other{number}"), A, count, first)
        assert filtered(Mesh([timed_store, other]), *conditions).get("A") == span, conditions


def test_late_records_are_in_the_ranges(timed_store: Served, times: Mesh) -> None:
    """Hours 0 to 9, then 7, 3 and 11: a record may be up to 6 hours late."""
    late = [T0_MS + at * HOUR_MS for at in (7, 3, 11)]
    timed_store.log.append([timed(A, 10, *late)])
    for conditions, expected in (
        ([(">=", 4)], (4, 13)),
        ([(">=", 10)], (12, 13)),
        ([("<", 4)], (0, 12)),
        ([(">=", 2), ("<", 3)], (2, 9)),
    ):
        assert filtered(times, *conditions)["A"] == expected, conditions


def test_a_store_that_does_not_answer_narrows_nothing(
    times: Mesh, serve: Serve, patch: Patch, logged: Logged
) -> None:
    times.served.append(hourly(serve("other"), A, 3))
    fail(patch, "offset_for_times", "other")
    assert filtered(times, (">=", 4)) == {"A": (0, 10), "B": (0, 5)}
    assert "the query's ranges are not narrowed by time" in logged.text


def test_records_of_c_nodes_are_read(timed_store: Served, times: Mesh) -> None:
    """They may be older than those of stores with Flight, and newer."""
    times.c_nodes = ["a C node"]
    for tp in A, B:
        times.add(tp, 12)
    assert filtered(times, (">=", 0)) == {"A": (0, 12), "B": (0, 12)}
    assert filtered(times, (">=", 9)) == {"A": (9, 12), "B": (5, 12)}
    assert filtered(times, ("<", 4)) == {"A": (0, 4), "B": (0, 1)}
    assert filtered(times, ("<", 99)) == {"A": (0, 12), "B": (0, 12)}
    timed_store.log.trim(A, 5)  # and C nodes have records before its first one
    assert filtered(times, (">=", 4))["A"] == (0, 12)


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
