"""Streaming queries that have nothing to do: what wakes them, and what they ask meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core.flight import limits
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.micro_batch_stream import LONG_S, DafkaMicroBatchStream, IdleWait
from tests.integration.cluster.stores import HeardOf, Serve, Served

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")
ALL = ReadAllAvailable()

Offset = dict[str, Any]
Later = Callable[..., Future[Offset]]


@pytest.fixture
def later() -> Iterator[Later]:
    """Calls things in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query waits for as long as it takes, unless a test says otherwise."""
    monkeypatch.setattr(IdleWait, "allowed_s", lambda _: PATIENCE_S)


def impatient(monkeypatch: pytest.MonkeyPatch, wait_s: float = 0.02) -> None:
    monkeypatch.setattr(IdleWait, "allowed_s", lambda _: wait_s)


def stream_of(source: HeardOf, **given: str) -> DafkaMicroBatchStream:
    options = {"subscribe": "t", "startingoffsets": "earliest", "fetchtimeoutms": "20000", **given}
    return DafkaMicroBatchStream(full(), SourceOptions.of(options), source.connect)


def idle(stream: DafkaMicroBatchStream) -> Offset:
    """Where the query is when it has read everything and been told that there is nothing new."""
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.latestOffset(end, ALL) == end
    return end


def watched(*stores: Served) -> None:
    """Waits until each of the stores has a client that waits."""
    free = limits.MAX_WATCHES - 1
    wait_until(lambda: all(each.service.context.watches.free == free for each in stores))


def test_a_store_says_that_there_is_something_new(serve: Serve, later: Later) -> None:
    store = serve("one")
    store.add(A, 5)
    stream = stream_of(HeardOf([store]))
    start = idle(stream)
    waiting = later(stream.latestOffset, start, ALL)
    watched(store)
    store.add(TopicPartition("another", "A"), 1)
    assert not waiting.done()
    store.add(B, 3)
    assert waiting.result()["topics"] == {"t": {"A": 5, "B": 3}}


def test_the_first_store_that_knows_of_something_new_wakes_the_query(
    serve: Serve, later: Later
) -> None:
    stores = first, second = [serve("first"), serve("second")]
    for store in stores:
        store.add(A, 5)
    stream = stream_of(HeardOf(stores))
    start = idle(stream)
    waiting = later(stream.latestOffset, start, ALL)
    watched(*stores)
    second.add(A, 1)
    end = waiting.result()
    assert end["topics"] == {"t": {"A": 6}}
    assert stream.latestOffset(end, ALL) is end
    waiting = later(stream.latestOffset, end, ALL)
    first.add(A, 3)
    assert waiting.result()["topics"] == {"t": {"A": 8}}


def test_an_idle_query_has_no_partition_looked_at(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    store = serve("one")
    for number in range(200):
        store.add(TopicPartition("t", f"P{number}"), 1)
    stream = stream_of(HeardOf([store]))
    start = idle(stream)
    snapshot = stream._snapshot
    with monkeypatch.context() as patched:
        for method in ("partitions", "snapshot", "info"):
            patched.delattr(type(store.log), method)
        for _ in range(10):
            assert stream.latestOffset(start, ALL) is start
    assert stream._snapshot is snapshot
    names = [each.name for each in threading.enumerate()]
    assert names.count("dafka-store-watch") <= 1
    # What is found when something has changed is what there is.
    store.log.trim(TopicPartition("t", "P7"), 1)
    store.add(TopicPartition("t", "P8"), 4)
    end = stream.latestOffset(start, ALL)
    before, after = (dict(SourceOffset.parse(each).positions) for each in (start, end))
    assert after == before | {TopicPartition("t", "P8"): 5}
    assert stream._snapshot is not None
    heads = {info.partition: info for info in stream._snapshot.heads.values()}
    assert (heads["P7"].earliest, heads["P7"].end) == (1, 1)
    assert list(stream._snapshot.heads.values()) == sorted(store.log.partitions())


@pytest.mark.parametrize("wait_s", [0.0, PATIENCE_S])
def test_a_record_from_before_the_question_is_always_seen(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """As ``processAllAvailable`` needs it, which asks once when the record is on disk."""
    store = serve("one")
    store.add(A, 1)
    stream = stream_of(HeardOf([store]))
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    for end in range(2, 40):
        impatient(monkeypatch, 0.0)
        assert stream.latestOffset(offset, ALL) is offset
        impatient(monkeypatch, wait_s)
        store.add(A, 1)
        offset = stream.latestOffset(offset, ALL)
        assert offset["topics"] == {"t": {"A": end}}


def test_who_waits_for_long_asks_once_a_second(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, LONG_S)
    monkeypatch.setattr(timing, "LOOK_S", PATIENCE_S)
    first, second = serve("first"), serve("second")
    first.add(A, 5)
    second.add(A, 9)
    source = HeardOf([first])
    stream = stream_of(source)
    start = idle(stream)
    with monkeypatch.context() as patched:
        patched.setattr(stream, "_refresh", None)  # nobody is asked
        for _ in range(3):
            assert stream.latestOffset(start, ALL) is start
    source.served.append(second)
    assert stream.latestOffset(start, ALL) is start
    monkeypatch.setattr(timing, "LOOK_S", 0.0)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 9}}


def test_a_store_that_dies_meanwhile_wakes_nobody_else(
    serve: Serve, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = serve("gone"), serve("there")
    for store in (gone, there):
        store.add(A, 5)
    source = HeardOf([gone, there])
    stream = stream_of(source)
    start = idle(stream)
    waiting = later(stream.latestOffset, start, ALL)
    watched(gone, there)
    gone.stop()
    impatient(monkeypatch)
    assert waiting.result() == start
    assert stream.latestOffset(start, ALL) == start
    assert stream._snapshot is not None
    assert stream._snapshot.silent == ("gone",)
    there.add(A, 1)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 6}}


def test_a_store_that_starts_anew_is_asked_for_everything(
    serve: Serve, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "RETRY_S", 0.0)
    monkeypatch.setattr(timing, "DESCRIPTION_S", 0.0)
    store = serve("one")
    store.add(A, 5)
    stream = stream_of(HeardOf([store]))
    start = idle(stream)
    waiting = later(stream.latestOffset, start, ALL)
    watched(store)
    port = store.port
    store.stop()
    store.add(A, 2)
    store.start(port)
    offset = waiting.result()
    wait_until(lambda: stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 7}})


def test_a_store_that_comes_meanwhile_is_noticed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    first, second = serve("first"), serve("second")
    first.add(A, 5)
    second.add(A, 9)
    source = HeardOf([first])
    stream = stream_of(source)
    start = idle(stream)
    assert stream.latestOffset(start, ALL) == start
    source.served.append(second)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 9}}


def test_a_store_that_cannot_tell_is_asked_now_and_then(serve: Serve, later: Later) -> None:
    """One at which the highest number of clients wait already."""
    store = serve("one")
    store.add(A, 5)
    taken = [store.service.context.watches.take() for _ in range(limits.MAX_WATCHES)]
    asked: list[float] = []

    class Counted(HeardOf):
        def stores(self) -> list[str]:
            asked.append(time.monotonic())
            return super().stores()

    source = Counted([store])
    stream = stream_of(source)
    start = idle(stream)
    asked.clear()
    waiting = later(stream.latestOffset, start, ALL)
    wait_until(lambda: len(asked) >= 4)
    assert asked[3] - asked[0] >= 3 * timing.UNWATCHED_S * 0.9
    store.add(A, 1)
    assert waiting.result()["topics"] == {"t": {"A": 6}}
    for permit in taken:
        permit.close()


def test_nobody_waits_where_the_mesh_has_to_be_asked(serve: Serve) -> None:
    """Its answers take as long as the mesh may be silent."""
    store = serve("ours")
    store.add(A, 5)
    source = HeardOf([store], ["a C node"])
    source.add(B, 7)
    stream = stream_of(source)
    start = idle(stream)
    before = time.monotonic()
    assert stream.latestOffset(start, ALL) == start
    assert time.monotonic() - before < PATIENCE_S
    source.add(B, 1)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 5, "B": 8}}


def test_a_query_that_reads_what_there_is_never_waits(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(IdleWait, "allowed_s")
    store = serve("one")
    store.add(A, 5)
    stream = stream_of(HeardOf([store]))
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ALL)
    for _ in range(3):
        assert stream.latestOffset(end, ALL) == end


def test_a_hundred_idle_queries_at_one_store(serve: Serve) -> None:
    """All of them hear of a record, and others are served meanwhile."""
    store = serve("one")
    store.add(A, 5)
    source = HeardOf([store])
    streams = [stream_of(source) for _ in range(100)]
    starts = [idle(stream) for stream in streams]
    with ThreadPoolExecutor(len(streams)) as pool:
        waiting = [
            pool.submit(stream.latestOffset, start, ALL)
            for stream, start in zip(streams, starts, strict=True)
        ]
        free = limits.MAX_WATCHES - len(streams)
        wait_until(lambda: store.service.context.watches.free == free)
        assert store.client().wait(A, 5, timeout_s=0) == 5
        store.add(A, 1)
        assert [each.result()["topics"] for each in waiting] == [{"t": {"A": 6}}] * len(streams)
