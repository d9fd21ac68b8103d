"""Ranges read from the log of a store, by Flight and over the mesh, while stores fail."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.flight import server_requests
from dafka_core.flight.columns import packed_parts
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
    RetentionAheadError,
    SourceLossError,
)
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange, StoreRange
from dafka_spark.source.partition_reader import FlightSource, LocalLogSource, MeshSource
from tests.integration.cluster.stores import (
    A,
    Batch,
    Logged,
    Mesh,
    Patch,
    Serve,
    Served,
    count_requests,
    restart_at_pause,
    value,
)

LONG = 60_000
"""Records of 1,000 bytes; no store has sent all of them when a reader gets its first batch."""


@pytest.fixture
def used(patch: Patch) -> list[str]:
    """The names of the sources that returned records, in order."""
    found: list[str] = []
    for kind in (LocalLogSource, FlightSource, MeshSource):

        def spied(source: Any, *ranges: Any, original: Any = kind.read) -> Iterator[Any]:
            for batch in original(source, *ranges):
                if found[-1:] != [source.name]:
                    found.append(source.name)
                yield batch

        patch.setattr(kind, "read", spied)
    return found


def read(
    location: StoreLocation, start: int, end: int, fetch: str, columns: str = "", **given: Any
) -> Iterator[pa.RecordBatch]:
    """Read from a store that reported everything up to ``end``."""
    task = OffsetRange(*A, start, end, (StoreRange(location, 0, end),))
    mesh = given.pop("mesh", Mesh())
    return Batch(mesh, columns, fetch=fetch, **given).read(DafkaInputPartition((task,)))


def offsets(*batches: pa.RecordBatch) -> list[int]:
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
    store, mesh = serve("one"), Mesh()
    for _ in range(3):
        store.add(A, 1_000, size_bytes=10)
    mesh.logs[A] = [value(offset, 10) for offset in range(3_000)]
    mesh.written = store.log.times(A, 0, 3_000)
    batches = read(store.location, 500, 2_900, fetch, mesh=mesh, maxrecordsperbatch="700")
    table = pa.Table.from_batches(list(batches))
    assert table["value"].to_pylist() == [value(offset, 10) for offset in range(500, 2_900)]
    assert table["offset"].to_pylist() == list(range(500, 2_900))
    assert set(table["topic"].to_pylist() + table["partition"].to_pylist()) == {"t", "A"}
    assert table["key"].null_count == 2_400
    firsts, times = np.array(mesh.written).T
    expected = times[firsts.searchsorted(np.arange(500, 2_900), "right") - 1]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == expected.tolist()
    assert used == [name]


def test_a_log_is_read_by_block_and_copied_once(serve: Serve) -> None:
    """Arrow allocates the block as it is read and the columns, and nothing else."""
    store = serve("one").add(A, 5_000, size_bytes=1_000)
    before = pa.total_allocated_bytes()
    (batch,) = read(store.location, 0, 5_000, "local", "value offset")
    assert batch.nbytes > 5_000_000
    assert pa.total_allocated_bytes() - before < batch.nbytes + 100_000
    other = serve("other").add(A, MAX_BLOCK_RECORDS, size_bytes=100)
    for fetch in ("local", "flight"):
        (batch,) = read(other.location, 0, MAX_BLOCK_RECORDS, fetch)
        assert batch.num_rows == MAX_BLOCK_RECORDS


def test_a_store_that_ends_its_leases_is_read_over_flight(
    one: Served, used: list[str], logged: Logged, patch: Patch
) -> None:
    original = Environment.lease

    def ended_at_once(environment: Environment, work: Any) -> Any:
        found, given = original(environment, work)
        assert given is not None
        environment.end_lease(given.id)
        return found, given

    patch.setattr(Environment, "lease", ended_at_once)
    assert offsets(*read(one.location, 0, 10, "auto")) == [*range(10)]
    assert used == ["store one by Arrow Flight"]
    assert "ended the lease of its file before offset 0" in logged.text
    with pytest.raises(FetchError, match="ended the lease of its file before offset 0"):
        list(read(one.location, 0, 10, "local"))


def test_another_source_continues_where_a_store_stops(
    serve: Serve, used: list[str], patch: Patch
) -> None:
    """The mesh, or the store itself when it is back."""
    store, mesh = serve("first").add(A, LONG, size_bytes=1_000), Mesh()
    mesh.logs[A] = [value(offset, 1_000) for offset in range(LONG)]
    # A location without a directory, as of a store on another machine.
    place = StoreLocation(store.address, store.location.locations)
    for fetch in ("auto", "flight"):
        batches = read(place, 0, LONG, fetch, "value offset", mesh=mesh, fetchtimeoutms="30000")
        found = [next(batches)]
        if fetch == "auto":
            port = store.port
            store.stop()
            found.extend(batches)
            store.start(port)
        else:
            restart_at_pause(patch, store)
            found.extend(batches)
        assert offsets(*found) == [*range(LONG)]
        for batch in found:
            assert batch["value"][0].as_py() == value(batch["offset"][0].as_py(), 1_000)
    name = "store first by Arrow Flight"
    assert used == [name, "the mesh", name]


# -- tasks of many ranges -------------------------------------------------------------------------

PARTITIONS = [TopicPartition("t", f"P{number:02}") for number in range(20)]
Rows = dict[str, list[int]]
ALL: Rows = {tp.partition: list(range(10)) for tp in PARTITIONS}


@pytest.fixture
def requests(patch: Patch) -> dict[str, int]:
    """The number of requests of each kind."""
    return count_requests(patch, "records", "lease")


def filled(store: Served, partitions: list[TopicPartition] = PARTITIONS) -> Served:
    for tp in partitions:
        store.add(tp, 10)
    return store


@pytest.fixture
def one(serve: Serve) -> Served:
    return filled(serve("one").add(A, 10))


@pytest.fixture
def two(serve: Serve) -> Served:
    return filled(serve("two"))


def task(*stores: Served, end: int = 10) -> DafkaInputPartition:
    """All records, from stores that reported them, in this order."""
    known = tuple(StoreRange(store.location, 0, end) for store in stores)
    return DafkaInputPartition(tuple(OffsetRange(*tp, 0, end, known) for tp in PARTITIONS))


def rows(wanted: DafkaInputPartition, fetch: str = "flight", **given: str) -> Rows:
    return Batch(Mesh(), fetch=fetch, **given).offsets([wanted])


def test_a_task_sends_a_store_one_request(one: Served, requests: dict[str, int]) -> None:
    many, leases = {"records": 1}, {"lease": 2}  # the second returns the lease
    for fetch, expected in ("flight", many), ("auto", many), ("local", leases):
        for given in {}, {"maxrecordsperbatch": "7"}, {"maxbytesperbatch": "3"}:
            requests.clear()
            assert rows(task(one), fetch, **given) == ALL
            assert requests == expected


def test_records_of_a_lease_that_ends_or_lacks_ranges_are_read_again(
    one: Served, requests: dict[str, int], patch: Patch
) -> None:
    with patch.context() as patched:
        patched.setattr(server_requests, "MAX_LEASED_BLOCKS", 8)
        assert rows(task(one), "local") == ALL
    assert requests == {"lease": 3 + 1}
    lease = StoreClient.lease

    def ended(client: Any, request: Any, **named: Any) -> Any:
        granted = lease(client, request, **named)
        if request.partial:
            one.log.end_lease(granted.lease)  # before the first read, as the store needs the space
        return granted

    patch.setattr(StoreClient, "lease", ended)
    assert rows(task(one), "local") == ALL
    assert requests["lease"] == 4 + 2 + 40  # each range's own


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


def test_each_store_is_asked_for_what_it_has(serve: Serve, requests: dict[str, int]) -> None:
    stores = filled(serve("even"), PARTITIONS[::2]), filled(serve("odd"), PARTITIONS[1::2])
    assert Batch(Mesh(stores), fetch="flight", minpartitions="1").offsets() == ALL
    assert requests == {"records": 2}
    # Records that a store has lost come from the next one.
    assert rows(task(*stores)) == ALL
    assert requests == {"records": 4}


def test_a_store_that_is_gone_is_asked_once_and_last(
    one: Served, two: Served, requests: dict[str, int], logged: Logged
) -> None:
    wanted = task(two, one)
    two.stop()
    assert rows(wanted) == ALL
    assert requests == {"records": 2}
    assert "continuing with another source" in logged.text
    # The other store reported less than it has, and is asked for each range: first.
    stores = StoreRange(two.location, 0, 10), StoreRange(one.location, 0, 5)
    ranges = tuple(replace(each, stores=stores) for each in wanted.ranges[:3])
    assert rows(DafkaInputPartition(ranges)) == {each.partition: [*range(10)] for each in ranges}
    assert "continuing with another source at offset 0" not in logged.text


def test_a_store_that_fails_in_the_middle_of_its_reply(
    one: Served, two: Served, requests: dict[str, int], patch: Patch
) -> None:
    def fail(parts: Any, *, times: bool) -> bytes:
        if parts[0].number >= 8:
            raise OSError("the disk is gone")
        return packed_parts(parts, times=times)

    patch.setattr(server_requests, "packed_parts", fail)
    # Each store sends eight of twenty ranges and stops in the middle of the next one.
    assert rows(task(two, one), maxrecordsperbatch="3") == ALL
    assert requests == {"records": 2 + 4}


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
