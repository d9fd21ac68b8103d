"""Snapshots of what the stores hold, and the plans made of them."""

from __future__ import annotations

from typing import Any

import pytest

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.integration.cluster.stores import HeardOf, Serve
from tests.unit.dafka_spark.streams import ALL, everything, reader, rows

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "20000", **given})


def snapshot(source: HeardOf, *, thorough: bool = False, **given: str) -> OffsetsSnapshot:
    return OffsetReader(options(**given), source.connect).snapshot(thorough=thorough)


def holders(found: OffsetsSnapshot) -> dict[str, tuple[int, int]]:
    return {held.location.store: (held.earliest, held.end) for held in found.holders[A]}


def test_the_earliest_and_the_furthest_offset_of_all_stores(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    ahead.log.trim(A, 20)
    behind.add(A, 60)
    behind.add(TopicPartition("u", "A"), 1)
    found = snapshot(HeardOf([ahead, behind]))
    assert list(found.heads.values()) == [PartitionInfo("t", "A", 0, 100)]
    assert holders(found) == {"ahead": (20, 100), "behind": (0, 60)}


def test_the_mesh_is_asked_once_where_all_stores_serve_flight(serve: Serve) -> None:
    store = serve("one")
    source = HeardOf([store])
    for count in range(1, 5):
        store.add(A, 1)
        assert list(snapshot(source).heads.values()) == [PartitionInfo("t", "A", 0, count)]
    assert source.calls == ["partitions"]


def test_stores_come_and_go(serve: Serve) -> None:
    first, second = serve("first"), serve("second")
    first.add(A, 5)
    second.add(A, 9)
    source = HeardOf([first])
    assert snapshot(source).heads[A].end == 5
    source.served.append(second)
    assert holders(snapshot(source)) == {"first": (0, 5), "second": (0, 9)}
    source.served.remove(first)
    assert holders(snapshot(source)) == {"second": (0, 9)}


def test_c_nodes_are_asked_over_the_mesh(serve: Serve) -> None:
    store = serve("ours")
    store.add(A, 5)
    source = HeardOf([store], ["a C node"])
    source.add(A, 7)
    source.add(B, 3)
    for _ in range(2):
        found = snapshot(source)
        assert list(found.heads.values()) == [
            PartitionInfo("t", "A", 0, 7),
            PartitionInfo("t", "B", 0, 3),
        ]
        assert holders(found) == {"ours": (0, 5)}
    assert source.calls == ["partitions"] * 2


def test_an_unreachable_store_delays_no_snapshot(serve: Serve) -> None:
    gone, there = serve("gone"), serve("there")
    gone.add(A, 9)
    there.add(A, 5)
    source = HeardOf([gone, there])
    assert snapshot(source).heads[A].end == 9
    gone.stop()
    for _ in range(3):
        assert holders(snapshot(source)) == {"there": (0, 5)}
    assert source.calls == ["partitions"]
    # A thorough snapshot asks the mesh as well, which may still reach the store.
    source.add(A, 9)
    assert list(snapshot(source, thorough=True).heads.values()) == [PartitionInfo("t", "A", 0, 9)]


def test_a_store_that_only_the_mesh_reaches_answers_there_after_a_while(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = serve("gone"), serve("there")
    there.add(A, 5)
    source = HeardOf([gone, there])
    source.add(A, 9)
    gone.stop()
    assert snapshot(source).heads[A].end == 9  # the first snapshot is over the mesh, too
    assert snapshot(source).heads[A].end == 5
    monkeypatch.setattr(timing, "FLIGHT_FAILURE_S", 0.0)
    assert snapshot(source).heads[A].end == 9


def test_a_store_that_has_been_started_anew_is_described_anew(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    source = HeardOf([store])
    before = snapshot(source).holders[A][0].location
    store.stop()
    store.start()
    after = snapshot(source).holders[A][0].location
    assert after.session != before.session
    store.stop()
    store.start(store.port)
    # No announcement changes, but a query that maps logs needs the session.
    assert snapshot(source, fetch="local").holders[A][0].location.session == store.location.session


def test_no_store_answers(serve: Serve) -> None:
    store = serve("one")
    source = HeardOf([store])
    source.add(A, 9)
    store.stop()
    found = snapshot(source)
    assert list(found.heads.values()) == [PartitionInfo("t", "A", 0, 9)]
    assert found.holders == {}
    with pytest.raises(StoreUnreachableError):
        snapshot(source, fetch="flight")


def test_another_store_where_one_was(serve: Serve) -> None:
    store, other = serve("one"), serve("other")
    other.add(A, 9)
    source = HeardOf([store])
    store.service, service = other.service, store.service
    with pytest.raises(StoreUnreachableError, match=r"store one: "):
        snapshot(source, fetch="flight")
    store.service = service


def test_a_store_with_an_invalid_endpoint(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    there = serve("there")
    there.add(A, 5)
    source = HeardOf([there], ["odd"])
    announced = {"odd": ("http://nowhere",), "there": there.location.locations}
    monkeypatch.setattr(source, "endpoints", lambda: announced)
    assert holders(snapshot(source, fetch="flight")) == {"there": (0, 5)}
    del announced["there"]
    with pytest.raises(StoreUnreachableError, match=r"store odd: .*grpc://HOST:PORT"):
        snapshot(source, fetch="flight")


@pytest.mark.parametrize("fetch", ["flight", "local"])
def test_an_impossible_fetch_fails_the_plan(serve: Serve, fetch: str) -> None:
    others = HeardOf([], ["a C node"])
    others.add(A, 5)
    query = DafkaBatchReader(full(), options(fetch=fetch), others.connect)
    with pytest.raises(ConfigError, match=rf"'fetch' = '{fetch}': no store .* serves Arrow Flight"):
        query.partitions()
    store = serve("ours")
    store.add(A, 5)
    both = HeardOf([store], ["a C node"])
    both.add(B, 5)
    both.add(TopicPartition("u", "C"), 5)  # not of this query
    query = DafkaBatchReader(full(), options(fetch=fetch), both.connect)
    with pytest.raises(ConfigError, match=r"partition B is only in stores that serve no Arrow"):
        query.partitions()
    stream = reader(both, fetch=fetch)
    with pytest.raises(ConfigError, match=r"partition B is only in stores that serve no Arrow"):
        stream.initialOffset()


def test_fetch_local_needs_a_log_on_this_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = serve("one")
    store.add(A, 5)
    assert store.service is not None
    monkeypatch.setattr(
        store.service.context, "location", type(store.location)("one", store.location.locations)
    )
    with pytest.raises(ConfigError, match="no store announces a log on this machine"):
        snapshot(HeardOf([store]), fetch="local")


def test_plans_name_the_stores(serve: Serve) -> None:
    first, second = serve("first"), serve("second")
    for store in (first, second):
        store.add(A, 100)
    second.log.trim(A, 30)
    source = HeardOf([first, second], ["a C node"])
    source.add(B, 10)
    given = options(maxrecordsperpartition="50")
    parts: list[Any] = DafkaBatchReader(full(), given, source.connect).partitions()
    assert [(*part.ranges[0].tp, part.ranges[0].start, stores(part)) for part in parts] == [
        ("t", "A", 0, ["first", "second"]),
        ("t", "A", 50, ["second", "first"]),
        ("t", "B", 0, []),
    ]


def test_an_offset_never_goes_backwards(serve: Serve) -> None:
    """The store that was ahead is gone, and the other one catches up later."""
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    behind.add(A, 60)
    source = HeardOf([ahead, behind])
    stream = reader(source)
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    assert offset["topics"] == {"t": {"A": 100}}
    ahead.stop()
    for _ in range(3):
        assert stream.latestOffset(offset, ALL) == offset
        assert stream.partitions(offset, offset) == []
    source.served.remove(ahead)
    assert stream.latestOffset(offset, ALL) == offset
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 100}}
    behind.add(A, 50)
    after = stream.latestOffset(offset, ALL)
    assert after["topics"] == {"t": {"A": 110}}
    (part,) = stream.partitions(offset, after)
    assert part.ranges == (OffsetRange("t", "A", 100, 110),)
    assert stores(part) == ["behind"]


def test_another_reader_plans_a_repeated_batch(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its own snapshot, also when an old one names stores that are gone."""
    first, second = serve("first"), serve("second")
    for store in (first, second):
        store.add(A, 100)
    source = HeardOf([first])
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert not any("first" in str(offset) for offset in (start, end))
    source.served[:] = [second]
    monkeypatch.setattr(timing, "SNAPSHOT_MAX_AGE_S", 0.0)
    for planning in (stream, reader(source)):
        (part,) = planning.partitions(start, end)
        assert stores(part) == ["second"]


def test_a_repeated_batch_has_the_same_tasks_at_other_stores(serve: Serve) -> None:
    """One store has died, and another one holds only a part."""
    whole, part = serve("whole"), serve("part")
    whole.add(A, 100)
    part.add(A, 45)
    source = HeardOf([whole, part])
    source.add(A, 100)
    given = {"maxRecordsPerPartition": "30"}
    stream = reader(source, **given)
    end = everything(stream)
    plan: list[Any] = stream.partitions(stream.initialOffset(), end)
    ranges = [each for part in plan for each in part.ranges]
    assert [(each.start, each.end) for each in ranges] == [(n, n + 25) for n in (0, 25, 50, 75)]
    before = rows(stream, plan)
    whole.stop()
    source.served.remove(whole)
    replay = reader(source, **given)
    again: list[Any] = replay.partitions(replay.initialOffset(), end)
    assert again == plan
    assert [stores(part) for part in again] == [["part"], ["part"], [], []]
    assert rows(replay, again) == before == {"A": [*range(100)]}


def stores(part: DafkaInputPartition) -> list[str]:
    (only,) = part.ranges
    return [each.location.store for each in only.stores]
