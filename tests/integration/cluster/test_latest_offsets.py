"""What the driver learns of stores, at each trigger."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from dafka_spark.source.offset_ranges import OffsetRange
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.integration.cluster.stores import HeardOf, Serve

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetchtimeoutms": "20000", **given})


def seen(source: HeardOf, *, thorough: bool = False, **given: str) -> OffsetsSnapshot:
    return OffsetReader(options(**given), source.connect).snapshot(thorough=thorough)


def holders(found: OffsetsSnapshot) -> dict[str, tuple[int, int]]:
    return {held.location.store: (held.earliest, held.end) for held in found.holders[A]}


def test_the_furthest_head_and_the_longest_memory(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    ahead.log.trim(A, 20)
    behind.add(A, 60)
    behind.add(TopicPartition("u", "A"), 1)
    found = seen(HeardOf([ahead, behind]))
    assert list(found.heads.values()) == [PartitionInfo("t", "A", 0, 100)]
    assert holders(found) == {"ahead": (20, 100), "behind": (0, 60)}


def test_the_mesh_is_asked_once_where_all_stores_serve_flight(serve: Serve) -> None:
    store = serve("one")
    source = HeardOf([store])
    for count in range(1, 5):
        store.add(A, 1)
        assert list(seen(source).heads.values()) == [PartitionInfo("t", "A", 0, count)]
    assert source.calls == ["partitions"]


def test_stores_come_and_go(serve: Serve) -> None:
    first, second = serve("first"), serve("second")
    first.add(A, 5)
    second.add(A, 9)
    source = HeardOf([first])
    assert seen(source).heads[A].end == 5
    source.served.append(second)
    assert holders(seen(source)) == {"first": (0, 5), "second": (0, 9)}
    source.served.remove(first)
    assert holders(seen(source)) == {"second": (0, 9)}


def test_c_nodes_are_asked_over_the_mesh(serve: Serve) -> None:
    store = serve("ours")
    store.add(A, 5)
    source = HeardOf([store], ["a C node"])
    source.add(A, 7)
    source.add(B, 3)
    for _ in range(2):
        found = seen(source)
        assert list(found.heads.values()) == [
            PartitionInfo("t", "A", 0, 7),
            PartitionInfo("t", "B", 0, 3),
        ]
        assert holders(found) == {"ours": (0, 5)}
    assert source.calls == ["partitions"] * 2


def test_a_store_that_does_not_answer_is_not_waited_for(serve: Serve) -> None:
    gone, there = serve("gone"), serve("there")
    gone.add(A, 9)
    there.add(A, 5)
    source = HeardOf([gone, there])
    assert seen(source).heads[A].end == 9
    gone.stop()
    for _ in range(3):
        assert holders(seen(source)) == {"there": (0, 5)}
    assert source.calls == ["partitions"]
    # Where the answer stands for a whole query the mesh is asked, which may still hear it.
    source.add(A, 9)
    assert list(seen(source, thorough=True).heads.values()) == [PartitionInfo("t", "A", 0, 9)]


def test_a_store_that_only_the_mesh_reaches_is_asked_there_after_a_while(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = serve("gone"), serve("there")
    there.add(A, 5)
    source = HeardOf([gone, there])
    source.add(A, 9)
    gone.stop()
    assert seen(source).heads[A].end == 9  # the first look is over the mesh, too
    assert seen(source).heads[A].end == 5
    monkeypatch.setattr(timing, "UNREACHABLE_S", 0.0)
    assert seen(source).heads[A].end == 9


def test_a_store_that_has_been_started_anew_is_described_anew(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    source = HeardOf([store])
    before = seen(source).holders[A][0].location
    store.stop()
    store.start()
    after = seen(source).holders[A][0].location
    assert after.session != before.session
    store.stop()
    store.start(store.port)
    # Nothing announces it, but a query that maps logs must know.
    assert seen(source, fetch="local").holders[A][0].location.session == store.location.session


def test_nobody_answers(serve: Serve) -> None:
    store = serve("one")
    source = HeardOf([store])
    source.add(A, 9)
    store.stop()
    found = seen(source)
    assert list(found.heads.values()) == [PartitionInfo("t", "A", 0, 9)]
    assert found.holders == {}
    with pytest.raises(StoreUnreachableError):
        seen(source, fetch="flight")


def test_another_store_where_one_was(serve: Serve) -> None:
    store, other = serve("one"), serve("other")
    other.add(A, 9)
    source = HeardOf([store])
    store.service, service = other.service, store.service
    with pytest.raises(StoreUnreachableError, match=r"store one: "):
        seen(source, fetch="flight")
    store.service = service


def test_a_store_that_announces_nonsense(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    there = serve("there")
    there.add(A, 5)
    source = HeardOf([there], ["odd"])
    announced = {"odd": ("http://nowhere",), "there": there.location.locations}
    monkeypatch.setattr(source, "endpoints", lambda: announced)
    assert holders(seen(source, fetch="flight")) == {"there": (0, 5)}
    del announced["there"]
    with pytest.raises(StoreUnreachableError, match=r"store odd: .*grpc://HOST:PORT"):
        seen(source, fetch="flight")


@pytest.mark.parametrize("fetch", ["flight", "local"])
def test_what_fetch_cannot_do_is_said_at_planning(serve: Serve, fetch: str) -> None:
    others = HeardOf([], ["a C node"])
    others.add(A, 5)
    reader = DafkaBatchReader(full(), options(fetch=fetch), others.connect)
    with pytest.raises(ConfigError, match=rf"'fetch' = '{fetch}': no store .* serves Arrow Flight"):
        reader.partitions()
    store = serve("ours")
    store.add(A, 5)
    both = HeardOf([store], ["a C node"])
    both.add(B, 5)
    both.add(TopicPartition("u", "C"), 5)  # not of this query
    reader = DafkaBatchReader(full(), options(fetch=fetch), both.connect)
    with pytest.raises(ConfigError, match=r"partition B is only in stores that serve no Arrow"):
        reader.partitions()
    stream = DafkaMicroBatchStream(full(), options(fetch=fetch), both.connect)
    with pytest.raises(ConfigError, match=r"partition B is only in stores that serve no Arrow"):
        stream.initialOffset()


def test_a_log_that_no_store_tells_of(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("one")
    store.add(A, 5)
    assert store.service is not None
    monkeypatch.setattr(
        store.service.context, "location", type(store.location)("one", store.location.locations)
    )
    with pytest.raises(ConfigError, match="no store announces a log on this machine"):
        seen(HeardOf([store]), fetch="local")


def test_plans_name_the_places(serve: Serve) -> None:
    first, second = serve("first"), serve("second")
    for store in (first, second):
        store.add(A, 100)
    second.log.trim(A, 30)
    source = HeardOf([first, second], ["a C node"])
    source.add(B, 10)
    given = options(maxrecordsperpartition="50")
    parts: list[Any] = DafkaBatchReader(full(), given, source.connect).partitions()
    assert [(p.partition, p.start, p.end, [h.location.store for h in p.held]) for p in parts] == [
        ("A", 0, 50, ["first", "second"]),
        ("A", 50, 100, ["second", "first"]),
        ("B", 0, 10, []),
    ]


# -- streams -------------------------------------------------------------------------------------


def stream_of(source: HeardOf, **given: str) -> DafkaMicroBatchStream:
    return DafkaMicroBatchStream(
        full(), options(startingoffsets="earliest", **given), source.connect
    )


def test_an_offset_never_goes_backwards(serve: Serve) -> None:
    """The store that was ahead is gone, the other one is behind, and then it catches up."""
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    behind.add(A, 60)
    source = HeardOf([ahead, behind])
    stream = stream_of(source)
    offset = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert offset["topics"] == {"t": {"A": 100}}
    ahead.stop()
    for _ in range(3):
        assert stream.latestOffset(offset, ReadAllAvailable()) == offset
        assert stream.partitions(offset, offset) == []
    source.served.remove(ahead)
    assert stream.latestOffset(offset, ReadAllAvailable()) == offset
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 100}}
    behind.add(A, 50)
    after = stream.latestOffset(offset, ReadAllAvailable())
    assert after["topics"] == {"t": {"A": 110}}
    (part,) = stream.partitions(offset, after)
    assert part == OffsetRange("t", "A", 100, 110)
    assert [held.location.store for held in part.held] == ["behind"]


def test_places_are_not_in_the_checkpoint(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 100)
    stream = stream_of(HeardOf([store]))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    for offset in (start, end):
        assert set(offset) == {"start", "topics", "version"}
        assert "one" not in str(offset)


def test_a_replayed_batch_is_planned_by_a_new_reader(serve: Serve) -> None:
    """It is asked for tasks before it has been asked for an offset."""
    store = serve("one")
    store.add(A, 100)
    source = HeardOf([store])
    first = stream_of(source)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    (part,) = stream_of(source).partitions(start, end)
    assert isinstance(part, OffsetRange)
    assert [held.location.store for held in part.held] == ["one"]


def test_places_of_a_long_available_now_are_renewed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "RANGES_S", 0.0)
    first, second = serve("first"), serve("second")
    for store in (first, second):
        store.add(A, 100)
    source = HeardOf([first])
    stream = stream_of(source)
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    source.served[:] = [second]
    (part,) = stream.partitions(start, end)
    assert isinstance(part, OffsetRange)
    assert [held.location.store for held in part.held] == ["second"]


def test_the_same_tasks_whatever_stores_there_are(serve: Serve) -> None:
    """A batch is run again when one store has died and another one holds only some of it."""
    whole, part = serve("whole"), serve("part")
    whole.add(A, 100)
    part.add(A, 45)
    source = HeardOf([whole, part])
    source.add(A, 100)
    given = {"maxrecordsperpartition": "30"}
    stream = stream_of(source, **given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    plan: list[Any] = stream.partitions(start, end)
    assert [(p.start, p.end) for p in plan] == [(0, 25), (25, 50), (50, 75), (75, 100)]
    before = [rows_of(stream, p) for p in plan]
    whole.stop()
    source.served.remove(whole)
    replay = stream_of(source, **given)
    again: list[Any] = replay.partitions(replay.initialOffset(), end)
    assert again == plan
    assert [[held.location.store for held in p.held] for p in again] == [["part"], ["part"], [], []]
    assert [rows_of(replay, p) for p in again] == before


def rows_of(stream: DafkaMicroBatchStream, part: OffsetRange) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for batch in stream.read(part):
        found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return found
