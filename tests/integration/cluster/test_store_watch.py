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
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.source import micro_batch_stream
from dafka_spark.source.micro_batch_stream import LONG_S, DafkaMicroBatchStream
from dafka_spark.source.offset_reader import OffsetReader
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, everything, reader

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")

Offset = dict[str, Any]
Later = Callable[[DafkaMicroBatchStream, Offset], Future[Offset]]
Waits = Callable[[float], None]


class Counted(HeardOf):
    """A mesh that notes the time of each snapshot."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.snapshots: list[float] = []

    def stores(self) -> list[str]:
        self.snapshots.append(time.monotonic())
        return super().stores()


@pytest.fixture
def later() -> Iterator[Later]:
    """Calls ``latestOffset`` in another thread."""
    with ThreadPoolExecutor(100) as pool:
        yield lambda stream, start: pool.submit(stream.latestOffset, start, ALL)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Set how long an idle query waits; without a call it waits for as long as it takes."""

    def wait(wait_s: float) -> None:
        monkeypatch.setattr(micro_batch_stream, "idle_wait_s", lambda _: wait_s)

    wait(PATIENCE_S)
    return wait


@pytest.fixture
def one(serve: Serve) -> Served:
    return serve("one").add(A, 5)


def idle(stream: DafkaMicroBatchStream) -> Offset:
    """Return the offset of a query that has read everything; its next question waits."""
    end = everything(stream)
    assert stream.latestOffset(end, ALL) is end
    return end


def watched(*stores: Served, count: int = 1) -> None:
    """Wait until each of the stores has this number of open requests."""
    free = limits.MAX_WATCHES - count
    wait_until(lambda: all(each.service.context.watches.free == free for each in stores))


def test_a_change_at_any_store_wakes_the_query(serve: Serve, one: Served, later: Later) -> None:
    second = serve("second")
    second.add(A, 5)
    stream = reader(HeardOf([one, second]))
    start = idle(stream)
    waiting = later(stream, start)
    watched(one, second)
    second.add(TopicPartition("another", "A"), 1)
    assert not waiting.done()
    second.add(B, 3)
    end = waiting.result()
    assert end["topics"] == {"t": {"A": 5, "B": 3}}
    assert stream.latestOffset(end, ALL) is end
    waiting = later(stream, end)
    one.add(A, 3)
    assert waiting.result()["topics"] == {"t": {"A": 8, "B": 3}}


def test_an_idle_query_reads_no_partition_at_a_store(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = serve("one")
    for number in range(200):
        store.add(TopicPartition("t", f"P{number}"), 1)
    offsets = OffsetReader(SourceOptions.of({"subscribe": "t"}), HeardOf([store]).connect)
    offsets.snapshot()  # over the mesh, too
    first = offsets.snapshot()
    with monkeypatch.context() as patched:
        for method in ("partitions", "snapshot", "info"):
            patched.delattr(type(store.log), method)
        for _ in range(10):
            offsets.wait(first, 0.02)
            assert offsets.snapshot() is first
    assert [each.name for each in threading.enumerate()].count("dafka-store-watch") <= 1
    store.log.trim(TopicPartition("t", "P7"), 1)
    store.add(TopicPartition("t", "P8"), 4)
    assert list(offsets.snapshot().heads.values()) == sorted(store.log.partitions())


@pytest.mark.parametrize("wait_s", [0.0, PATIENCE_S])
def test_a_record_from_before_the_question_is_always_seen(
    one: Served, waits: Waits, wait_s: float
) -> None:
    """As ``processAllAvailable`` needs it, which asks once when the record is on disk."""
    stream = reader(HeardOf([one]))
    offset = everything(stream)
    for end in range(6, 44):
        waits(0.0)
        assert stream.latestOffset(offset, ALL) is offset
        waits(wait_s)
        one.add(A, 1)
        offset = stream.latestOffset(offset, ALL)
        assert offset["topics"] == {"t": {"A": end}}


def test_a_long_wait_needs_a_snapshot_once_a_second(
    serve: Serve, one: Served, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits(LONG_S)
    monkeypatch.setattr(timing, "IDLE_CHECK_S", PATIENCE_S)
    source, second = Counted([one]), serve("second")
    stream = reader(source)
    start = idle(stream)
    source.snapshots.clear()
    second.add(A, 9)
    source.served.append(second)
    for _ in range(3):
        assert stream.latestOffset(start, ALL) is start
    assert source.snapshots == []
    monkeypatch.setattr(timing, "IDLE_CHECK_S", 0.0)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 9}}


def test_a_store_that_dies_meanwhile_stops_no_query(
    serve: Serve, one: Served, later: Later, waits: Waits
) -> None:
    gone = serve("gone")
    gone.add(A, 5)
    stream = reader(HeardOf([gone, one]))
    start = idle(stream)
    waiting = later(stream, start)
    watched(gone, one)
    gone.stop()
    waits(0.02)
    assert waiting.result() == start
    assert stream.latestOffset(start, ALL) == start
    one.add(A, 1)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 6}}


def test_a_restarted_store_sends_everything(
    one: Served, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "STORE_BACKOFF_S", 0.0)
    monkeypatch.setattr(timing, "LOCATION_MAX_AGE_S", 0.0)
    stream = reader(HeardOf([one]))
    start = idle(stream)
    waiting = later(stream, start)
    watched(one)
    port = one.port
    one.stop()
    one.add(A, 2)
    one.start(port)
    offset = waiting.result()
    wait_until(lambda: stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 7}})


def test_a_store_without_free_watches_is_polled(one: Served, later: Later) -> None:
    """The highest number of clients wait there already."""
    taken = [one.service.context.watches.take() for _ in range(limits.MAX_WATCHES)]
    source = Counted([one])
    stream = reader(source)
    start = idle(stream)
    source.snapshots.clear()
    waiting = later(stream, start)
    wait_until(lambda: len(source.snapshots) >= 4)
    assert source.snapshots[3] - source.snapshots[0] >= 3 * timing.UNWATCHED_POLL_S * 0.9
    one.add(A, 1)
    assert waiting.result()["topics"] == {"t": {"A": 6}}
    for permit in taken:
        permit.close()


@pytest.mark.parametrize("ends", [False, True])
def test_a_query_over_the_mesh_or_to_the_end_never_waits(one: Served, *, ends: bool) -> None:
    """C nodes announce no changes, and ``availableNow`` reads no new records."""
    source = HeardOf([one], () if ends else ["a C node"])
    stream = reader(source)
    if ends:
        stream.prepareForTriggerAvailableNow()
    began = time.monotonic()
    start = idle(stream)
    for _ in range(3):
        assert stream.latestOffset(start, ALL) == start
    assert time.monotonic() - began < PATIENCE_S
    source.add(B, 1)
    expected = {"A": 5} if ends else {"A": 5, "B": 1}
    assert stream.latestOffset(start, ALL)["topics"] == {"t": expected}


def test_a_hundred_idle_queries_at_one_store(one: Served, later: Later) -> None:
    """A record wakes every query, and the store serves others meanwhile."""
    streams = [reader(HeardOf([one])) for _ in range(100)]
    waiting = [later(stream, idle(stream)) for stream in streams]
    watched(one, count=100)
    assert one.client().wait(A, 5, timeout_s=0) == 5
    one.add(A, 1)
    assert [each.result()["topics"] for each in waiting] == [{"t": {"A": 6}}] * 100
