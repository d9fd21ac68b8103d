"""One range, read from the log of a store, by Flight and over the mesh."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dafka_core import Producer
from dafka_core.errors import DataLossError
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import MAX_BLOCK_RECORDS
from dafka_core.storage.environment import Environment
from dafka_spark.errors import FetchError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange, StoreRange
from dafka_spark.source.partition_reader import PartitionReader
from dafka_spark.source.record_sources import FlightSource, LocalLogSource, MeshSource
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import HeardOf, Serve, value
from tests.integration.storage import appender
from tests.integration.storage.processes import started, told

A = TopicPartition("t", "A")
LONG = 60_000
"""Records of 1,000 bytes; no store has sent all of them when a reader gets its first batch."""


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sources that returned records, in order."""
    found: list[str] = []
    for kind in (LocalLogSource, FlightSource, MeshSource):

        def spied(source: Any, *ranges: Any, original: Any = kind.read) -> Iterator[Any]:
            for batch in original(source, *ranges):
                if found[-1:] != [source.name]:
                    found.append(source.name)
                yield batch

        monkeypatch.setattr(kind, "read", spied)
    return found


def columns(*names: str) -> StructType:
    return StructType([full()[name] for name in names])


def options(fetch: str, **given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "2000", **given})


def read(
    location: StoreLocation | list[StoreLocation],
    start: int,
    end: int,
    given: SourceOptions,
    *names: str,
    mesh: HeardOf | None = None,
    tp: TopicPartition = A,
) -> Iterator[pa.RecordBatch]:
    """Read from stores that reported everything up to ``end``."""
    locations = location if isinstance(location, list) else [location]
    stores = tuple(StoreRange(each, 0, end) for each in locations)
    task = DafkaInputPartition((OffsetRange(*tp, start, end, stores),))
    schema = columns(*names) if names else full()
    return PartitionReader(schema, given, (mesh or HeardOf()).connect).read(task)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


@pytest.mark.parametrize(
    ("fetch", "name"),
    [
        ("local", "the log of store one"),
        ("auto", "the log of store one"),
        ("flight", "store one by Arrow Flight"),
        ("mesh", "the mesh"),
    ],
)
def test_every_source_gives_the_same_rows(
    serve: Serve, used: list[str], fetch: str, name: str
) -> None:
    store, mesh = serve("one"), HeardOf()
    for _ in range(3):
        store.add(A, 1_000, size_bytes=10)
    mesh.logs[A] = [value(offset, 10) for offset in range(3_000)]
    mesh.written = store.log.times(A, 0, 3_000)
    given = options(fetch, maxrecordsperbatch="700")
    table = pa.Table.from_batches(list(read(store.location, 500, 2_900, given, mesh=mesh)))
    assert table["value"].to_pylist() == [value(offset, 10) for offset in range(500, 2_900)]
    assert table["offset"].to_pylist() == list(range(500, 2_900))
    assert set(table["topic"].to_pylist() + table["partition"].to_pylist()) == {"t", "A"}
    assert table["key"].null_count == 2_400
    firsts, times = np.array(mesh.written).T
    expected = times[firsts.searchsorted(np.arange(500, 2_900), "right") - 1]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == expected.tolist()
    assert used == [name]


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_a_block_is_a_batch(serve: Serve, fetch: str) -> None:
    store = serve("one")
    store.add(A, MAX_BLOCK_RECORDS, size_bytes=100)
    (batch,) = read(store.location, 0, MAX_BLOCK_RECORDS, options(fetch))
    assert batch.num_rows == MAX_BLOCK_RECORDS


def test_a_log_is_copied_once(serve: Serve) -> None:
    """Arrow allocates the block as it is read and the columns, and nothing else."""
    store = serve("one")
    store.add(A, 5_000, size_bytes=1_000)
    before = pa.total_allocated_bytes()
    (batch,) = read(store.location, 0, 5_000, options("local"), "value", "offset")
    assert batch.nbytes > 5_000_000
    assert pa.total_allocated_bytes() - before < batch.nbytes + 100_000


def test_a_store_that_ends_its_leases_is_read_over_flight(
    serve: Serve, used: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Environment.lease

    def ended_at_once(environment: Environment, work: Any) -> Any:
        found, given = original(environment, work)
        assert given is not None
        environment.end_lease(given.id)
        return found, given

    store = serve("one")
    store.add(A, 100)
    monkeypatch.setattr(Environment, "lease", ended_at_once)
    assert offsets(read(store.location, 0, 100, options("auto"))) == list(range(100))
    assert used == ["store one by Arrow Flight"]
    assert "ended the lease of its file before offset 0" in caplog.text
    with pytest.raises(FetchError, match="ended the lease of its file before offset 0"):
        list(read(store.location, 0, 100, options("local")))


@pytest.mark.parametrize("fetch", ["flight", "auto", "mesh"])
def test_another_source_continues_where_a_store_stops(
    serve: Serve, used: list[str], fetch: str
) -> None:
    first, second, mesh = serve("first"), serve("second"), HeardOf()
    for store in (first, second):
        store.add(A, LONG, size_bytes=1_000)
    mesh.logs[A] = [value(offset, 1_000) for offset in range(LONG)]
    others, given = ([], "auto") if fetch == "mesh" else ([second], fetch)
    # Locations without a directory, as of stores on other machines.
    places = [StoreLocation(each.address, each.location.locations) for each in (first, *others)]
    batches = read(places, 0, LONG, options(given), "value", "offset", mesh=mesh)
    table = [next(batches)]
    first.stop()
    table.extend(batches)
    assert offsets(iter(table)) == list(range(LONG))
    for batch in table:
        assert batch["value"][0].as_py() == value(batch["offset"][0].as_py(), 1_000)
    name = "the mesh" if fetch == "mesh" else "store second by Arrow Flight"
    assert used == ["store first by Arrow Flight", name]


def test_a_store_that_comes_back_is_read_on(serve: Serve) -> None:
    store = serve("one")
    store.add(A, LONG, size_bytes=1_000)
    port = store.port
    batches = read(store.location, 0, LONG, options("flight", fetchtimeoutms="30000"), "offset")
    table = [next(batches)]
    store.stop()
    timer = threading.Timer(0.5, store.start, (port,))
    timer.start()
    table.extend(batches)
    timer.join()
    assert offsets(iter(table)) == list(range(LONG))


def test_a_log_that_is_merged_and_trimmed_while_it_is_read(tmp_path: Path) -> None:
    """Another process writes, merges and trims."""
    command = [sys.executable, "-m", appender.__name__, str(tmp_path), "7", "serve"]
    rows = 0
    with started(command) as writer:
        assert writer.stdout is not None
        location = StoreLocation.parse(writer.stdout.readline())
        first = status = told(writer)
        while rows < 300_000 or status.merged < first.merged + 20:
            status = told(writer)
            rows += checked_rows(location, max(0, status.end - 20_000), status.end)


def checked_rows(location: StoreLocation, start: int, end: int) -> int:
    """Read an appender's records from its log; return the number of rows before a trim."""
    given = options("local", maxrecordsperbatch="500")
    tp = TopicPartition(appender.TOPIC, appender.PARTITION)
    position, lost = start, end
    try:
        for batch in read(location, start, end, given, "value", tp=tp):
            values = [appender.value(position + row) for row in range(batch.num_rows)]
            assert batch["value"].to_pylist() == values
            position += batch.num_rows
    except DataLossError as loss:
        lost = loss.wanted
    assert position == lost
    return position - start


def test_a_range_of_which_only_the_mesh_has_some(serve: Serve, used: list[str]) -> None:
    """A C node is ahead of our store, and has a partition of its own."""
    store = serve("ours")
    store.add(A, 60)
    mesh = HeardOf([store], ["a C node"])
    mesh.add(A, 100)
    mesh.add(TopicPartition("t", "B"), 30)
    reader = DafkaBatchReader(columns("partition", "offset"), options("auto"), mesh.connect)
    tables = [pa.Table.from_batches(list(reader.read(task))) for task in reader.partitions()]
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert rows == [*(("A", n) for n in range(100)), *(("B", n) for n in range(30))]
    assert used == ["the log of store ours", "the mesh"]


def test_a_store_is_killed_in_the_middle_of_a_range(used: list[str]) -> None:
    """With stores in processes of their own, planned by a driver in the mesh."""
    with ForkedCluster(2) as cluster:
        with Producer("t", tower=cluster.tower, acks=2) as producer:
            producer.publish_many([value(offset, 1_000) for offset in range(LONG)])
            producer.flush(60)
        given = SourceOptions.of({"subscribe": "t", "tower": cluster.tower, "fetch": "flight"})
        reader = DafkaBatchReader(columns("offset", "value"), given)
        (task,) = reader.partitions()
        assert isinstance(task, DafkaInputPartition)
        stores = [each.location.store for each in task.ranges[0].stores]
        assert sorted(stores) == sorted(cluster.stores)
        batches = reader.read(task)
        table = [next(batches)]
        cluster.kill_store(cluster.stores.index(stores[0]))
        table.extend(batches)
        assert offsets(iter(table)) == list(range(LONG))
        assert used == [f"store {store} by Arrow Flight" for store in stores]
