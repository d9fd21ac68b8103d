"""Streaming queries: later partitions, limits by bytes, and what wakes idle ones."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.flight import limits
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.source import micro_batch_stream
from dafka_spark.source.micro_batch_stream import LONG_S, DafkaMicroBatchStream
from dafka_spark.source.offset_reader import OffsetReader
from tests.integration.cluster.stores import A, B, C, Logged, Mesh, Patch, Serve, Served, fail
from tests.unit.dafka_spark.streams import (
    ALL,
    Query,
    everything,
    json_round,
    planned,
    positions,
    reader,
    rows,
    set_clock,
)

HOUR_S = 3_600

Offset = dict[str, Any]

# -- partitions that a query from ``latest`` finds later -------------------------------------------


@pytest.fixture
def away(serve: Serve) -> Served:
    """A store with a history, which is unreachable when the query begins."""
    return write(serve("two"), B, 50, HOUR_S)


def write(store: Served, tp: TopicPartition, count: int, ago_s: float = 0.0) -> Served:
    store.add_at(tp, *[(time.time() - ago_s) * 1e3] * count)
    return store


def latest(mesh: Mesh) -> Query:
    return Query(reader(mesh, startingOffsets="latest", fetchTimeoutMs="10000"))


def test_a_history_is_not_read(mesh: Mesh, away: Served, logged: Logged) -> None:
    query, earliest = latest(mesh), Query(reader(mesh))
    assert positions(query.end) == {"A": 5}
    assert earliest.read() == {"A": [*range(5)]}
    mesh.served.append(away)
    assert query.read() == {}
    assert positions(query.end) == {"A": 5, "B": 50}  # without a record to read
    assert query.read() == {}
    assert query.start == query.end
    assert earliest.read() == {"B": [*range(50)]}
    (warning,) = [each for each in logged.messages if "older" in each]
    assert "topic 't', partition B appeared after the query's start" in warning
    assert "its older records, offsets 0 to 50 (exclusive), are left out" in warning
    write(away, B, 3)
    mesh.served[0].add(A, 2)
    assert query.read() == {"A": [5, 6], "B": [50, 51, 52]}
    mesh.c_nodes = ["a C node"]  # it keeps no times, so its partitions are read as a whole
    mesh.add(C, 4)
    assert query.read() == {"C": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("ahead_s", "later_s"), [(-36_000, -36_000), (0, 0), (36_000, 36_000), (36_000, 0)]
)
def test_records_since_the_start_are_read(
    mesh: Mesh, away: Served, patch: Patch, ahead_s: int, later_s: int
) -> None:
    """Also if the driver's clock is wrong or set back, or a producer's half a minute behind."""
    set_clock(patch, ahead_s)
    query = latest(mesh)
    set_clock(patch, later_s)
    write(away, B, 4, 30)
    write(away, C, 3)
    mesh.served.append(away)
    assert query.read() == {"B": [50, 51, 52, 53], "C": [0, 1, 2]}


def test_a_restart_changes_nothing(mesh: Mesh, away: Served, serve: Serve) -> None:
    query = latest(mesh)
    write(away, B, 2)
    mesh.served.append(away)
    assert query.read() == {"B": [50, 51]}
    write(away, B, 5)
    again = latest(mesh)
    assert rows(again.stream, again.stream.partitions(again.end, query.end)) == {"B": [50, 51]}
    mesh.served.append(write(serve("three"), C, 7, 10 * HOUR_S))
    again.end = query.end
    assert again.read() == {"B": [52, 53, 54, 55, 56]}
    assert positions(again.end) == {"A": 5, "B": 57, "C": 7}


def test_the_start_is_fixed_at_once(mesh: Mesh, away: Served) -> None:
    """Also if the limit leaves no room for the partition in this batch."""
    write(away, C, 50, HOUR_S)
    for tp in (B, C):
        write(away, tp, 5)
    query = latest(mesh)
    mesh.served.append(away)
    batches = [query.read(ReadMaxRows(1)), query.read()]
    assert sum(positions(query.start).values()) == 5 + 50 + 50 + 1
    for name in "BC":
        assert [offset for each in batches for offset in each.get(name, [])] == [*range(50, 55)]


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ([], {"A": [5]}),
        # The store that answers lacks the last records, which may be newer.
        (["ahead"], {"A": [5], "B": [*range(50, 70)]}),
        # None answers: the partition waits for the next trigger.
        (["ahead", "two"], {"A": [5]}),
    ],
)
def test_stores_that_do_not_answer_for_a_time(
    mesh: Mesh,
    away: Served,
    serve: Serve,
    patch: Patch,
    failing: list[str],
    expected: dict[str, list[int]],
) -> None:
    query = latest(mesh)
    mesh.served += [away, write(serve("ahead"), B, 70, HOUR_S)]
    mesh.served[0].add(A, 1)
    with patch.context() as patched:
        fail(patched, "offset_for_times", *failing or ["none"])
        assert query.read() == expected
    assert ("B" in positions(query.end)) == (len(failing) < 2)
    assert query.read() == {}
    assert positions(query.end) == {"A": 6, "B": 70}


# -- ``maxBytesPerTrigger`` ------------------------------------------------------------------------


@pytest.fixture
def large(serve: Serve) -> Mesh:
    """5,000 records of 1,000 bytes in A, 100 of 10,000 bytes in B: 6 million bytes."""
    store = serve("large")
    for _ in range(10):
        store.add(A, 500, 1_000)
    return Mesh([store.add(B, 100, 10_000)])


def batches(mesh: Mesh, *, ends: bool = False, **given: str) -> list[tuple[int, int, set[str]]]:
    """Return the records, bytes and partitions of each micro-batch until all records are read."""
    stream, found = reader(mesh, **given), []
    if ends:
        stream.prepareForTriggerAvailableNow()
    start = json_round(stream.initialOffset())
    while (end := json_round(stream.latestOffset(start, stream.getDefaultReadLimit()))) != start:
        batches = [each for task in stream.partitions(start, end) for each in stream.read(task)]
        table = pa.Table.from_batches(batches)
        size = sum(map(len, table["value"].to_pylist()))
        found.append((table.num_rows, size, set(table["partition"].to_pylist())))
        start = end
    return found


def test_batches_have_about_that_many_bytes(large: Mesh, logged: Logged) -> None:
    """The default takes such a small topic at once."""
    found = batches(large, ends=True, maxbytespertrigger="1000000")
    counts, sizes, names = zip(*found, strict=True)
    assert (sum(counts), sum(sizes)) == (5_100, 6_000_000)
    assert len(counts) in (6, 7)
    assert max(sizes) <= 1_050_000
    assert min(sizes[:-1]) >= 900_000
    assert all(each == {"A", "B"} for each in names[:-1])
    assert [count for count, _, _ in batches(large)] == [5_100]
    assert "maxBytesPerTrigger" not in logged.text


def test_records_that_become_larger_are_noticed(serve: Serve) -> None:
    """A mean over all waiting records would be wrong for the first and for the last of them."""
    store = serve("one")
    for size in (100, 100, 100, 20_000):
        store.add(A, 1_000, size)
    found = batches(Mesh([store]), maxbytespertrigger="2m")
    assert sum(count for count, _, _ in found) == 4_000
    assert max(size for _, size, _ in found) < 3 << 20


def test_a_store_without_sizes_is_retried_each_time(large: Mesh, patch: Patch) -> None:
    requests = fail(patch, "record_sizes")
    found = batches(large, maxbytespertrigger=str(1_024 * 1_000))
    assert [count for count, _, _ in found] == [1_000] * 5 + [100]
    assert len(requests) == 6


# -- idle queries ----------------------------------------------------------------------------------

Later = Callable[[DafkaMicroBatchStream, Offset], Future[Offset]]
Waits = Callable[[float], None]


class Counted(Mesh):
    """A mesh that notes the time of each snapshot."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.snapshots: list[float] = []

    def stores(self) -> list[str]:
        self.snapshots.append(time.monotonic())
        return super().stores()


@pytest.fixture
def later(waits: Waits) -> Iterator[Later]:
    """Calls ``latestOffset`` in another thread."""
    with ThreadPoolExecutor(100) as pool:
        yield lambda stream, start: pool.submit(stream.latestOffset, start, ALL)


@pytest.fixture
def waits(patch: Patch) -> Waits:
    """Set how long an idle query waits; without a call it waits for as long as it takes."""

    def wait(wait_s: float) -> None:
        patch.setattr(micro_batch_stream, "idle_wait_s", lambda _: wait_s)

    wait(PATIENCE_S)
    return wait


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
    second = serve("second").add(A, 5)
    stream = reader(Mesh([one, second]))
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


def test_an_idle_query_reads_no_partition_at_a_store(serve: Serve, patch: Patch) -> None:
    store = serve("one")
    for number in range(200):
        store.add(TopicPartition("t", f"P{number}"), 1)
    offsets = OffsetReader(SourceOptions.of({"subscribe": "t"}), Mesh([store]).connect)
    offsets.snapshot()  # over the mesh, too
    first = offsets.snapshot()
    with patch.context() as patched:
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
    one: Served, mesh: Mesh, waits: Waits, wait_s: float
) -> None:
    """As ``processAllAvailable`` needs it, which asks once when the record is on disk."""
    stream = reader(mesh)
    offset = everything(stream)
    for end in range(6, 44):
        waits(0.0)
        assert stream.latestOffset(offset, ALL) is offset
        waits(wait_s)
        one.add(A, 1)
        offset = stream.latestOffset(offset, ALL)
        assert offset["topics"] == {"t": {"A": end}}


def test_a_record_from_before_the_plan_of_an_empty_first_batch_is_seen(
    one: Served, mesh: Mesh
) -> None:
    """Spark requests the initial offset again then, which takes a new snapshot."""
    stream = reader(mesh, startingOffsets="latest")
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) is start
    one.add(A, 1)
    assert planned(stream, stream.initialOffset(), start) == set()
    assert positions(stream.latestOffset(start, ALL)) == {"A": 6}


def test_a_long_wait_needs_a_snapshot_once_a_second(
    serve: Serve, one: Served, waits: Waits, patch: Patch
) -> None:
    waits(LONG_S)
    patch.setattr(timing, "IDLE_CHECK_S", PATIENCE_S)
    mesh = Counted([one])
    stream = reader(mesh)
    start = idle(stream)
    mesh.snapshots.clear()
    mesh.served.append(serve("second").add(A, 9))
    for _ in range(3):
        assert stream.latestOffset(start, ALL) is start
    assert mesh.snapshots == []
    patch.setattr(timing, "IDLE_CHECK_S", 0.0)
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 9}}


def test_a_store_that_dies_meanwhile_stops_no_query(
    serve: Serve, one: Served, later: Later, waits: Waits
) -> None:
    gone = serve("gone").add(A, 5)
    stream = reader(Mesh([gone, one]))
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
    one: Served, mesh: Mesh, later: Later, patch: Patch
) -> None:
    patch.setattr(timing, "STORE_BACKOFF_S", 0.0)
    patch.setattr(timing, "LOCATION_MAX_AGE_S", 0.0)
    stream = reader(mesh)
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
    mesh = Counted([one])
    stream = reader(mesh)
    start = idle(stream)
    mesh.snapshots.clear()
    waiting = later(stream, start)
    wait_until(lambda: len(mesh.snapshots) >= 4)
    assert mesh.snapshots[3] - mesh.snapshots[0] >= 3 * timing.UNWATCHED_POLL_S * 0.9
    one.add(A, 1)
    assert waiting.result()["topics"] == {"t": {"A": 6}}
    for permit in taken:
        permit.close()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.usefixtures("waits")
def test_a_query_over_the_mesh_or_to_the_end_never_waits(mesh: Mesh, *, ends: bool) -> None:
    """C nodes announce no changes, and ``availableNow`` reads no new records."""
    mesh.c_nodes = [] if ends else ["a C node"]
    stream = reader(mesh)
    if ends:
        stream.prepareForTriggerAvailableNow()
    began = time.monotonic()
    start = idle(stream)
    for _ in range(3):
        assert stream.latestOffset(start, ALL) == start
    assert time.monotonic() - began < PATIENCE_S
    mesh.add(B, 1)
    expected = {"A": 5} if ends else {"A": 5, "B": 1}
    assert stream.latestOffset(start, ALL)["topics"] == {"t": expected}


def test_a_hundred_idle_queries_at_one_store(one: Served, mesh: Mesh, later: Later) -> None:
    """A record wakes every query, and the store serves others meanwhile."""
    streams = [reader(mesh) for _ in range(100)]
    waiting = [later(stream, idle(stream)) for stream in streams]
    watched(one, count=100)
    assert one.client().wait(A, 5, timeout_s=0) == 5
    one.add(A, 1)
    assert [each.result()["topics"] for each in waiting] == [{"t": {"A": 6}}] * 100
