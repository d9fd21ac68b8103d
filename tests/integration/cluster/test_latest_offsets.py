"""Snapshots of the offsets at stores, and the plans made of them."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import DafkaInputPartition
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.integration.cluster.stores import HeardOf, Serve
from tests.unit.dafka_spark.streams import ALL, planned, reader, rows

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "20000", **given})


def snapshot(source: HeardOf, *, thorough: bool = False, **given: str) -> OffsetsSnapshot:
    return OffsetReader(options(**given), source.connect).snapshot(thorough=thorough)


def holders(source: HeardOf, **given: str) -> dict[str, tuple[int, int]]:
    """Return the stores with partition A, and their ranges."""
    held = snapshot(source, thorough=False, **given).holders.get(A, ())
    return {each.location.store: (each.earliest, each.end) for each in held}


def stores(part: DafkaInputPartition) -> list[str]:
    (only,) = part.ranges
    return [each.location.store for each in only.stores]


def test_the_earliest_and_the_furthest_offset_of_all_stores(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    ahead.log.trim(A, 20)
    source = HeardOf([ahead])
    assert holders(source) == {"ahead": (20, 100)}
    behind.add(A, 60)
    behind.add(TopicPartition("u", "A"), 1)
    source.served.append(behind)
    assert list(snapshot(source).heads.values()) == [PartitionInfo("t", "A", 0, 100)]
    assert holders(source) == {"ahead": (20, 100), "behind": (0, 60)}
    ahead.add(A, 1)
    assert snapshot(source).heads[A].end == 101
    source.served.remove(ahead)
    assert holders(source) == {"behind": (0, 60)}
    assert source.calls == ["partitions"]  # once over the mesh: all stores serve Flight


def test_stores_without_flight_answer_over_the_mesh(serve: Serve) -> None:
    store = serve("ours")
    store.add(A, 5)
    source = HeardOf([store], ["a C node"])
    source.add(A, 7)
    source.add(B, 3)
    for _ in range(2):
        found = snapshot(source).heads.values()
        assert [*found] == [PartitionInfo("t", "A", 0, 7), PartitionInfo("t", "B", 0, 3)]
    assert source.calls == ["partitions"] * 2
    assert holders(source) == {"ours": (0, 5)}


def test_an_unreachable_store_delays_no_snapshot(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = serve("gone"), serve("there")
    gone.add(A, 9)
    there.add(A, 5)
    source = HeardOf([gone, there])
    assert snapshot(source).heads[A].end == 9
    gone.stop()
    for _ in range(3):
        assert holders(source) == {"there": (0, 5)}
    assert source.calls == ["partitions"]
    # The mesh may still reach it: for a thorough snapshot, and for every one after a while.
    source.add(A, 9)
    assert snapshot(source, thorough=True).heads[A].end == 9
    assert snapshot(source).heads[A].end == 5
    monkeypatch.setattr(timing, "FLIGHT_FAILURE_S", 0.0)
    assert snapshot(source).heads[A].end == 9


def test_a_restarted_store_is_described_anew(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    source = HeardOf([store])
    before = snapshot(source).locations[0]
    store.stop()
    store.start()
    assert snapshot(source).locations[0].session != before.session
    store.stop()
    store.start(store.port)
    # No announcement changes, but a query that maps logs needs the session.
    assert snapshot(source, fetch="local").locations[0].session == store.location.session


def test_without_an_answer_by_flight_only_the_mesh_is_left(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = serve("one"), serve("other")
    other.add(A, 5)
    source = HeardOf([store])
    source.add(A, 9)
    with monkeypatch.context() as patched:
        patched.setattr(store, "service", other.service)  # it answers with another store's name
        with pytest.raises(StoreUnreachableError, match=r"store one: "):
            snapshot(source, fetch="flight")
    store.stop()
    found = snapshot(source)
    assert (found.heads[A].end, [*found.holders]) == (9, [])
    with pytest.raises(StoreUnreachableError):
        snapshot(source, fetch="flight")
    announced = {"odd": ("http://nowhere",), "other": other.location.locations}
    odd = HeardOf([other], ["odd"])
    monkeypatch.setattr(odd, "endpoints", lambda: announced)
    assert holders(odd, fetch="flight") == {"other": (0, 5)}
    del announced["other"]
    with pytest.raises(StoreUnreachableError, match=r"store odd: .*grpc://HOST:PORT"):
        snapshot(odd, fetch="flight")


@pytest.mark.parametrize("fetch", ["flight", "local"])
def test_an_impossible_fetch_fails_the_plan(
    serve: Serve, fetch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HeardOf([], ["a C node"])
    source.add(A, 5)
    query = DafkaBatchReader(full(), options(fetch=fetch), source.connect)
    with pytest.raises(ConfigError, match=rf"'fetch' = '{fetch}': no store .* serves Arrow Flight"):
        query.partitions()
    store = serve("ours")
    store.add(A, 5)
    both = HeardOf([store], ["a C node"])
    both.add(TopicPartition("u", "C"), 5)  # the query does not read it
    assert holders(both, fetch=fetch) == {"ours": (0, 5)}
    both.add(B, 5)
    query = DafkaBatchReader(full(), options(fetch=fetch), both.connect)
    for plan in (query.partitions, reader(both, fetch=fetch).initialOffset):
        with pytest.raises(ConfigError, match=r"partition B is only in stores that serve no Arrow"):
            plan()
    location = type(store.location)("ours", store.location.locations)
    monkeypatch.setattr(store.service.context, "location", location)
    with pytest.raises(ConfigError, match="no store announces a log on this machine"):
        snapshot(HeardOf([store]), fetch="local")


def test_a_plan_names_no_stores_that_are_gone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the query, whose snapshot is old, nor its restart, which repeats a batch."""
    first, second = serve("first"), serve("second")
    for store in (first, second):
        store.add(A, 100)
    source = HeardOf([first])
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    source.served[:] = [second]
    monkeypatch.setattr(timing, "SNAPSHOT_MAX_AGE_S", 0.0)
    for planning in (stream, reader(source)):
        assert [stores(part) for part in planning.partitions(start, end)] == [["second"]]


def test_a_repeated_batch_has_the_same_tasks_at_other_stores(serve: Serve) -> None:
    """The store with all records has died, and a second store holds a part of them."""
    whole, part = serve("whole"), serve("part")
    whole.add(A, 100)
    part.add(A, 45)
    source = HeardOf([whole, part])
    source.add(A, 100)
    stream, replay = (reader(source, maxRecordsPerPartition="30") for _ in range(2))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    plan = stream.partitions(start, end)
    assert planned(stream, start, end) == {("A", first, first + 25) for first in range(0, 100, 25)}
    before = rows(stream, plan)
    whole.stop()
    source.served.remove(whole)
    again = replay.partitions(replay.initialOffset(), end)
    assert again == plan
    assert [stores(part) for part in again] == [["part"], ["part"], [], []]
    assert rows(replay, again) == before == {"A": [*range(100)]}
