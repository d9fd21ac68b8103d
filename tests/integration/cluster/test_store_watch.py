"""Idle streaming queries: what wakes them, and their requests meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dafka_core.flight import limits
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.source import micro_batch_stream
from dafka_spark.source.micro_batch_stream import LONG_S, DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, reader

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")

Offset = dict[str, Any]
Later = Callable[..., Future[Offset]]


@pytest.fixture
def later() -> Iterator[Later]:
    """Calls a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query waits for as long as it takes, unless a test changes it."""
    monkeypatch.setattr(micro_batch_stream, "idle_wait_s", lambda _: PATIENCE_S)


def impatient(monkeypatch: pytest.MonkeyPatch, wait_s: float = 0.02) -> None:
    monkeypatch.setattr(micro_batch_stream, "idle_wait_s", lambda _: wait_s)


def idle(stream: DafkaMicroBatchStream) -> Offset:
    """Return the offset of a query that has read everything; its next question waits."""
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.latestOffset(end, ALL) == end
    return end


def watched(*stores: Served) -> None:
    """Wait until each of the stores has an open request."""
    free = limits.MAX_WATCHES - 1
    wait_until(lambda: all(each.service.context.watches.free == free for each in stores))


def test_a_change_at_any_store_wakes_the_query(serve: Serve, later: Later) -> None:
    stores = first, second = [serve("first"), serve("second")]
    for store in stores:
        store.add(A, 5)
    stream = reader(HeardOf(stores))
    start = idle(stream)
    waiting = later(stream.latestOffset, start, ALL)
    watched(*stores)
    second.add(TopicPartition("another", "A"), 1)
    assert not waiting.done()
    second.add(B, 3)
    end = waiting.result()
    assert end["topics"] == {"t": {"A": 5, "B": 3}}
    assert stream.latestOffset(end, ALL) is end
    waiting = later(stream.latestOffset, end, ALL)
    first.add(A, 3)
    assert waiting.result()["topics"] == {"t": {"A": 8, "B": 3}}


def test_an_idle_query_reads_no_partition_at_a_store(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    store = serve("one")
    for number in range(200):
        store.add(TopicPartition("t", f"P{number}"), 1)
    stream = reader(HeardOf([store]))
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
    stream = reader(HeardOf([store]))
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    for end in range(2, 40):
        impatient(monkeypatch, 0.0)
        assert stream.latestOffset(offset, ALL) is offset
        impatient(monkeypatch, wait_s)
        store.add(A, 1)
        offset = stream.latestOffset(offset, ALL)
        assert offset["topics"] == {"t": {"A": end}}


def test_a_long_wait_needs_a_snapshot_once_a_second(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, LONG_S)
    monkeypatch.setattr(timing, "IDLE_CHECK_S", PATIENCE_S)
    first, second = serve("first"), serve("second")
    first.add(A, 5)
    second.add(A, 9)
    source = HeardOf([first])
    stream = reader(source)
    start = idle(stream)
    with monkeypatch.context() as patched:
        patched.setattr(stream, "_refresh", None)  # no snapshot is taken
        for _ in range(3):
            assert stream.latestOffset(start, ALL) is start
    source.served.append(second)
    assert stream.latestOffset(start, ALL) is start
    monkeypatch.setattr(timing, "IDLE_CHECK_S", 0.0)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 9}}


def test_a_store_that_dies_meanwhile_stops_no_query(
    serve: Serve, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = serve("gone"), serve("there")
    for store in (gone, there):
        store.add(A, 5)
    source = HeardOf([gone, there])
    stream = reader(source)
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


def test_a_restarted_store_sends_everything(
    serve: Serve, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "STORE_BACKOFF_S", 0.0)
    monkeypatch.setattr(timing, "LOCATION_MAX_AGE_S", 0.0)
    store = serve("one")
    store.add(A, 5)
    stream = reader(HeardOf([store]))
    start = idle(stream)
    waiting = later(stream.latestOffset, start, ALL)
    watched(store)
    port = store.port
    store.stop()
    store.add(A, 2)
    store.start(port)
    offset = waiting.result()
    wait_until(lambda: stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 7}})


def test_a_store_without_free_watches_is_polled(serve: Serve, later: Later) -> None:
    """The highest number of clients wait there already."""
    store = serve("one")
    store.add(A, 5)
    taken = [store.service.context.watches.take() for _ in range(limits.MAX_WATCHES)]
    asked: list[float] = []

    class Counted(HeardOf):
        def stores(self) -> list[str]:
            asked.append(time.monotonic())
            return super().stores()

    source = Counted([store])
    stream = reader(source)
    start = idle(stream)
    asked.clear()
    waiting = later(stream.latestOffset, start, ALL)
    wait_until(lambda: len(asked) >= 4)
    assert asked[3] - asked[0] >= 3 * timing.UNWATCHED_POLL_S * 0.9
    store.add(A, 1)
    assert waiting.result()["topics"] == {"t": {"A": 6}}
    for permit in taken:
        permit.close()


def test_a_query_over_the_mesh_never_waits(serve: Serve) -> None:
    """C nodes announce no changes."""
    store = serve("ours")
    store.add(A, 5)
    source = HeardOf([store], ["a C node"])
    source.add(B, 7)
    stream = reader(source)
    start = idle(stream)
    before = time.monotonic()
    assert stream.latestOffset(start, ALL) == start
    assert time.monotonic() - before < PATIENCE_S
    source.add(B, 1)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 5, "B": 8}}


def test_available_now_never_waits(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(micro_batch_stream, "idle_wait_s")
    store = serve("one")
    store.add(A, 5)
    stream = reader(HeardOf([store]))
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ALL)
    for _ in range(3):
        assert stream.latestOffset(end, ALL) == end


def test_a_hundred_idle_queries_at_one_store(serve: Serve) -> None:
    """A record wakes all of them, and the store serves others meanwhile."""
    store = serve("one")
    store.add(A, 5)
    source = HeardOf([store])
    streams = [reader(source) for _ in range(100)]
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
