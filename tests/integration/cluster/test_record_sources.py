"""Ranges read from the log of a store, by Flight and over the mesh, while stores fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dafka_core import Producer
from dafka_core.flight import server_actions, server_get
from dafka_core.flight.requests import packed_parts
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage.block import MAX_BLOCK_RECORDS
from dafka_core.storage.environment import Environment
from dafka_spark.errors import (
    FetchError,
    HistoryReplacedError,
    IncompleteBatchError,
    RetentionAheadError,
    SourceLossError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange, StoreRange
from dafka_spark.source.partition_reader import PartitionReader
from dafka_spark.source.record_sources import FlightSource, LocalLogSource, MeshSource
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import HeardOf, Serve, Served, restart_at_pause, value

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
    return SourceOptions.of({"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "10000", **given})


def read(
    location: StoreLocation | list[StoreLocation],
    start: int,
    end: int,
    given: SourceOptions,
    *names: str,
    mesh: HeardOf | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read from stores that reported everything up to ``end``."""
    locations = location if isinstance(location, list) else [location]
    stores = tuple(StoreRange(each, 0, end) for each in locations)
    task = DafkaInputPartition((OffsetRange(*A, start, end, stores),))
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


def test_a_store_that_comes_back_is_read_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("one")
    store.add(A, LONG, size_bytes=1_000)
    batches = read(store.location, 0, LONG, options("flight", fetchtimeoutms="30000"), "offset")
    table = [next(batches)]
    restart_at_pause(monkeypatch, store)
    table.extend(batches)
    assert offsets(iter(table)) == list(range(LONG))


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


# -- tasks of many ranges -------------------------------------------------------------------------

PARTITIONS = [TopicPartition("t", f"P{number:02}") for number in range(20)]
Rows = dict[str, list[int]]
ALL: Rows = {tp.partition: list(range(10)) for tp in PARTITIONS}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of requests of each kind."""
    found: Counter[str] = Counter()
    for name in ("read", "read_many", "lease", "lease_many"):
        original = getattr(StoreClient, name)

        def spied(*given: Any, name: str = name, call: Any = original, **more: Any) -> Any:
            found[name] += 1
            return call(*given, **more)

        monkeypatch.setattr(StoreClient, name, spied)
    return found


def filled(store: Served, partitions: list[TopicPartition] = PARTITIONS) -> Served:
    for tp in partitions:
        store.add(tp, 10)
    return store


@pytest.fixture
def one(serve: Serve) -> Served:
    return filled(serve("one"))


@pytest.fixture
def two(serve: Serve) -> Served:
    return filled(serve("two"))


def task(*stores: Served, end: int = 10) -> DafkaInputPartition:
    """All records, from stores that reported them, in this order."""
    known = tuple(StoreRange(store.location, 0, end) for store in stores)
    return DafkaInputPartition(tuple(OffsetRange(*tp, 0, end, known) for tp in PARTITIONS))


def rows(wanted: DafkaInputPartition, fetch: str = "flight", **given: str) -> Rows:
    chosen = options(fetch, **given)
    found: Rows = {}
    for batch in PartitionReader(full(), chosen, HeardOf().connect).read(wanted):
        assert batch.num_rows <= chosen.max_records_per_batch
        assert batch["timestamp"].null_count == 0
        for row in batch.select(["partition", "offset", "value"]).to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
            assert row["value"] == value(row["offset"])
    return found


@pytest.mark.parametrize("given", [{}, {"maxrecordsperbatch": "7"}, {"maxbytesperbatch": "3"}])
@pytest.mark.parametrize(
    ("fetch", "expected"),
    [
        ("flight", {"read_many": 1}),
        ("auto", {"read_many": 1}),
        ("local", {"lease_many": 1, "lease": 1}),  # the second one returns the lease
    ],
)
def test_a_task_sends_a_store_one_request(
    one: Served, requests: Counter[str], fetch: str, expected: dict[str, int], given: dict[str, str]
) -> None:
    assert rows(task(one), fetch, **given) == ALL
    assert requests == expected


def test_a_lease_may_cover_some_ranges(
    one: Served, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_actions, "MAX_LEASED_BLOCKS", 8)
    assert rows(task(one), "local") == ALL
    assert requests == {"lease_many": 3, "lease": 1}


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_lost_records_are_an_error_of_one_range(one: Served, two: Served, fetch: str) -> None:
    one.log.trim(PARTITIONS[3], 4)
    assert rows(task(one, two), fetch) == ALL
    with pytest.raises(RetentionAheadError, match=r"partition P03.* offset 4 on is available"):
        rows(task(one), fetch)
    assert rows(task(one), fetch, failondataloss="false") == ALL | {"P03": [*range(4, 10)]}
    one.add(PARTITIONS[7], 1)
    with pytest.raises(SourceLossError, match=r"partition P00.* offset 10"):
        rows(task(one, end=11), fetch, fetchtimeoutms="1000")


def test_records_of_a_lease_that_ends_are_read_again(
    one: Served, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store ends it before the first read, as it needs the space."""
    lease_many = StoreClient.lease_many

    def ended(client: Any, *given: Any, **named: Any) -> Any:
        granted = lease_many(client, *given, **named)
        one.log.end_lease(granted.lease)
        return granted

    monkeypatch.setattr(StoreClient, "lease_many", ended)
    assert rows(task(one), "local") == ALL
    assert requests["lease"] == 41  # each range's own


def test_each_store_is_asked_for_what_it_has(serve: Serve, requests: Counter[str]) -> None:
    stores = filled(serve("one"), PARTITIONS[::2]), filled(serve("two"), PARTITIONS[1::2])
    given = options("flight", minpartitions="1")
    (wanted,) = DafkaBatchReader(full(), given, HeardOf(stores).connect).partitions()
    assert isinstance(wanted, DafkaInputPartition)
    assert rows(wanted) == ALL
    assert requests == {"read_many": 2}


def test_records_that_a_store_has_lost_come_from_the_next(
    one: Served, serve: Serve, requests: Counter[str]
) -> None:
    assert rows(task(filled(serve("two"), PARTITIONS[:5]), one)) == ALL
    assert requests == {"read_many": 2}


def test_a_store_that_is_gone_is_asked_once_and_last(
    one: Served, two: Served, requests: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = task(two, one)
    two.stop()
    assert rows(wanted) == ALL
    assert requests == {"read_many": 2}
    assert "continuing with another source" in caplog.text
    # The other store reported less than it has, and is asked for each range: first.
    stores = StoreRange(two.location, 0, 10), StoreRange(one.location, 0, 5)
    ranges = tuple(replace(each, stores=stores) for each in wanted.ranges[:3])
    assert rows(DafkaInputPartition(ranges)) == {each.partition: [*range(10)] for each in ranges}
    assert "continuing with another source at offset 0" not in caplog.text


def test_a_store_that_fails_in_the_middle_of_its_reply(
    one: Served, two: Served, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(parts: Any, *, times: bool) -> bytes:
        if parts[0].number >= 8:
            raise OSError("the disk is gone")
        return packed_parts(parts, times=times)

    monkeypatch.setattr(server_get, "packed_parts", fail)
    # Each store sends eight of twenty ranges and stops in the middle of the next one.
    assert rows(task(two, one), maxrecordsperbatch="3") == ALL
    assert requests == {"read_many": 2, "read": 4}


def test_a_changed_history_is_an_error_of_one_range(one: Served) -> None:
    """A newer producer replaced the records from offset 6 on."""
    tp, old = TopicPartition("t", "Q"), Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 6, old.digest)
    values = Values.of([value(offset) for offset in range(10)])
    one.log.append([RecordBatch(tp, 0, values, epoch=old)])
    assert one.log.write([SetAside(tp, 6)]) == [None]
    one.log.append([RecordBatch(tp, 6, values[6:], epoch=new)])
    known = task(one).ranges

    def read_life(life: EpochId, **more: str) -> Rows:
        ranges = replace(known[0], partition="Q", life=life), *known
        return rows(DafkaInputPartition(ranges), **more)

    with pytest.raises(HistoryReplacedError, match="partition Q"):
        read_life(old.life)
    assert read_life(new.life) == ALL | {"Q": [*range(10)]}
    with pytest.raises(FetchError, match="life 11 of the partition's producer"):
        read_life(EpochId(11, 3, 1), fetchtimeoutms="1000")


def test_records_that_come_twice_are_an_error(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read_many = StoreClient.read_many

    def twice(*given: Any, **named: Any) -> Any:
        for parts in read_many(*given, **named):
            yield from (parts[:3], parts[:1], parts[3:])

    monkeypatch.setattr(StoreClient, "read_many", twice)
    with pytest.raises(IncompleteBatchError, match="came twice"):
        rows(task(one))
