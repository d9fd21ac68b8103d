"""One range, read from the log of a store, by Flight and over the mesh."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dafka_core import Producer
from dafka_core.errors import DataLossError
from dafka_core.flight.store_client import StoreClient
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


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sources that returned records, in order."""
    found: list[str] = []
    for kind in (LocalLogSource, FlightSource, MeshSource):

        def spied(way: Any, wanted: OffsetRange, original: Any = kind.read) -> Iterator[Any]:
            for batch in original(way, wanted):
                if found[-1:] != [way.name]:
                    found.append(way.name)
                yield batch

        monkeypatch.setattr(kind, "read", spied)
    return found


def columns(*names: str) -> StructType:
    return StructType([full()[name] for name in names])


def options(fetch: str, **given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "2000", **given})


def known(store_locations: list[StoreLocation], end: int) -> tuple[StoreRange, ...]:
    """Stores that reported everything up to ``end``."""
    return tuple(StoreRange(location, 0, end) for location in store_locations)


def batches(
    store_locations: list[StoreLocation], start: int, end: int, given: SourceOptions, *names: str
) -> Iterator[pa.RecordBatch]:
    wanted = OffsetRange("t", "A", start, end, known(store_locations, end))
    schema = columns(*names) if names else full()
    return PartitionReader(schema, given, HeardOf().connect).read(DafkaInputPartition((wanted,)))


@pytest.mark.parametrize("fetch", ["local", "flight", "auto", "mesh"])
def test_every_source_gives_the_same_rows(serve: Serve, used: list[str], fetch: str) -> None:
    store = serve("one")
    for _ in range(3):
        store.add(A, 1_000, size_bytes=10)
    source = HeardOf()
    source.logs[A] = [value(offset, 10) for offset in range(3_000)]
    source.written = store.log.times(A, 0, 3_000)
    wanted = OffsetRange("t", "A", 500, 2_900, known([store.location], 3_000))
    given = options(fetch, maxrecordsperbatch="700")
    found = PartitionReader(full(), given, source.connect).read(DafkaInputPartition((wanted,)))
    table = pa.Table.from_batches(list(found))
    assert table["value"].to_pylist() == [value(offset, 10) for offset in range(500, 2_900)]
    assert table["offset"].to_pylist() == list(range(500, 2_900))
    assert set(table["topic"].to_pylist()) == {"t"}
    assert set(table["partition"].to_pylist()) == {"A"}
    assert table["key"].null_count == 2_400
    firsts, times = zip(*store.log.times(A, 0, 3_000), strict=True)
    expected = [times[bisect_right(firsts, offset) - 1] for offset in range(500, 2_900)]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == expected
    names = {"mesh": "the mesh", "flight": "store one by Arrow Flight"}
    assert used == [names.get(fetch, "the log of store one")]


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_a_block_is_a_batch(serve: Serve, fetch: str) -> None:
    store = serve("one")
    store.add(A, MAX_BLOCK_RECORDS, size_bytes=100)
    found = list(batches([store.location], 0, MAX_BLOCK_RECORDS, options(fetch)))
    assert [batch.num_rows for batch in found] == [MAX_BLOCK_RECORDS]


def test_a_log_is_copied_once(serve: Serve) -> None:
    """Arrow allocates the block as it is read and the columns, and nothing else."""
    store = serve("one")
    store.add(A, 5_000, size_bytes=1_000)
    before = pa.total_allocated_bytes()
    (batch,) = batches([store.location], 0, 5_000, options("local"), "value", "offset")
    assert batch.nbytes > 5_000_000
    assert pa.total_allocated_bytes() - before < batch.nbytes + 100_000


def test_a_store_that_ends_its_leases_is_read_over_flight(
    serve: Serve, used: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = serve("one")
    store.add(A, 100)
    monkeypatch.setattr(Environment, "lease", ended_at_once(Environment.lease))
    found = batches([store.location], 0, 100, options("auto"), "offset")
    assert sum(batch.num_rows for batch in found) == 100
    assert used == ["store one by Arrow Flight"]
    assert "ended the lease of its file before offset 0" in caplog.text
    with pytest.raises(FetchError, match="ended the lease of its file before offset 0"):
        list(batches([store.location], 0, 100, options("local")))


def ended_at_once(original: Any) -> Any:
    def lease(environment: Environment, work: Any) -> Any:
        found, given = original(environment, work)
        environment.end_lease(given.id)
        return found, given

    return lease


def test_only_times_that_are_read_are_asked_for(serve: Serve, used: list[str]) -> None:
    store = serve("one")
    store.add(A, 10)
    asked: list[bool] = []
    original = StoreClient.read

    def spied(client: StoreClient, *bounds: Any, times: bool, **limits: Any) -> Iterator[Any]:
        asked.append(times)
        return original(client, *bounds, times=times, **limits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreClient, "read", spied)
        (batch,) = batches([store.location], 0, 10, options("flight"), "offset")
        assert batch.schema.names == ["offset"]
        list(batches([store.location], 0, 10, options("flight"), "timestamp"))
    assert asked == [False, True]


@pytest.mark.parametrize("fetch", ["flight", "auto", "mesh"])
def test_another_source_continues_where_a_store_stops(
    serve: Serve, used: list[str], fetch: str
) -> None:
    first, second = serve("first"), serve("second")
    for store in (first, second):
        store.add(A, 60_000, size_bytes=1_000)
    source = HeardOf()
    source.logs[A] = [value(offset, 1_000) for offset in range(60_000)]
    last = [] if fetch == "mesh" else [second]
    # Locations without a directory, as of stores on other machines.
    places = [StoreLocation(each.address, each.location.locations) for each in (first, *last)]
    wanted = DafkaInputPartition((OffsetRange(*A, 0, 60_000, known(places, 60_000)),))
    given = options("auto" if fetch == "mesh" else fetch)
    found = PartitionReader(columns("value", "offset"), given, source.connect).read(wanted)
    table = [next(found)]
    first.stop()
    table.extend(found)
    assert pa.Table.from_batches(table)["offset"].to_pylist() == list(range(60_000))
    for batch in table:
        assert batch["value"][0].as_py() == value(batch["offset"][0].as_py(), 1_000)
    name = "the mesh" if fetch == "mesh" else "store second by Arrow Flight"
    assert used == ["store first by Arrow Flight", name]


def test_one_store_that_stays_away(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 60_000, size_bytes=1_000)
    given = options("flight", fetchtimeoutms="500")
    found = batches([store.location], 0, 60_000, given, "offset")
    table = [next(found)]
    store.stop()
    with pytest.raises(FetchError, match=r"fetch = flight: store one by Arrow Flight: ") as caught:
        table.extend(found)
    assert caught.value.offset == sum(batch.num_rows for batch in table)


def test_a_store_that_comes_back_is_read_on(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 60_000, size_bytes=1_000)
    port = store.port
    given = options("flight", fetchtimeoutms="30000")
    found = batches([store.location], 0, 60_000, given, "offset")
    table = [next(found)]
    store.stop()
    timer = threading.Timer(0.5, store.start, (port,))
    timer.start()
    table.extend(found)
    timer.join()
    assert pa.Table.from_batches(table)["offset"].to_pylist() == list(range(60_000))


def test_a_store_started_anew_is_not_local(serve: Serve, used: list[str]) -> None:
    store = serve("one")
    store.add(A, 10)
    location, port = store.location, store.port
    store.stop()
    store.start(port)
    with pytest.raises(FetchError, match=r"the store was restarted"):
        list(batches([location], 0, 10, options("local")))
    assert sum(batch.num_rows for batch in batches([location], 0, 10, options("auto"))) == 10
    assert used == ["store one by Arrow Flight"]


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_trimmed_records(serve: Serve, caplog: pytest.LogCaptureFixture, fetch: str) -> None:
    store = serve("one")
    store.add(A, 100)
    store.log.trim(A, 30)
    with pytest.raises(DataLossError, match=r"offset 10 was asked for, offset 30 on is available"):
        list(batches([store.location], 10, 60, options(fetch)))
    given = options(fetch, failondataloss="false")
    (batch,) = batches([store.location], 10, 60, given, "offset")
    assert batch["offset"].to_pylist() == list(range(30, 60))
    assert "failOnDataLoss is false" in caplog.text


def test_a_log_that_is_merged_and_trimmed_while_it_is_read(tmp_path: Path) -> None:
    """Another process writes, merges and trims."""
    command = [sys.executable, "-m", appender.__name__, str(tmp_path), "7", "serve"]
    rows = 0
    with started(command) as writer:
        assert writer.stdout is not None
        location = StoreLocation.parse(writer.stdout.readline())
        first = said = told(writer)
        while rows < 300_000 or said.merged < first.merged + 20:
            said = told(writer)
            rows += checked_rows(location, max(0, said.end - 20_000), said.end)


def checked_rows(location: StoreLocation, start: int, end: int) -> int:
    """Read an appender's records from its log; return the number of rows before a trim."""
    wanted = OffsetRange(appender.TOPIC, appender.PARTITION, start, end, known([location], end))
    given = options("local", maxrecordsperbatch="500")
    at, lost = start, None
    try:
        for batch in PartitionReader(columns("value"), given, HeardOf().connect).read(
            DafkaInputPartition((wanted,))
        ):
            values = [appender.value(offset) for offset in range(at, at + batch.num_rows)]
            assert batch["value"].to_pylist() == values
            at += batch.num_rows
    except DataLossError as loss:
        lost = loss
    assert at == end if lost is None else lost.wanted == at
    return at - start


def test_a_range_of_which_only_the_mesh_has_some(serve: Serve, used: list[str]) -> None:
    """A C node is ahead of our store, and has a partition of its own."""
    store = serve("ours")
    store.add(A, 60)
    source = HeardOf([store], ["a C node"])
    source.add(A, 100)
    source.add(TopicPartition("t", "B"), 30)
    reader = DafkaBatchReader(columns("partition", "offset"), options("auto"), source.connect)
    rows: dict[str, list[int]] = {"A": [], "B": []}
    for part in reader.partitions():
        for batch in reader.read(part):
            (name,) = set(batch["partition"].to_pylist())
            rows[name].extend(batch["offset"].to_pylist())
    assert rows == {"A": list(range(100)), "B": list(range(30))}
    assert used == ["the log of store ours", "the mesh"]


def test_a_store_is_killed_in_the_middle_of_a_range(used: list[str]) -> None:
    """With stores in processes of their own, planned by a driver in the mesh."""
    count = 60_000
    with ForkedCluster(2) as cluster:
        with Producer("t", tower=cluster.tower, acks=2) as producer:
            producer.publish_many([value(offset, 1_000) for offset in range(count)])
            producer.flush(60)
        given = SourceOptions.of({"subscribe": "t", "tower": cluster.tower, "fetch": "flight"})
        reader = DafkaBatchReader(columns("offset", "value"), given)
        (part,) = reader.partitions()
        assert isinstance(part, DafkaInputPartition)
        stores = [held.location.store for held in part.ranges[0].stores]
        assert sorted(stores) == sorted(cluster.stores)
        found = reader.read(part)
        table = [next(found)]
        cluster.kill_store(cluster.stores.index(stores[0]))
        table.extend(found)
        offsets = pa.Table.from_batches(table)["offset"].to_pylist()
        assert offsets == list(range(count))
        assert used == [f"store {store} by Arrow Flight" for store in stores]
