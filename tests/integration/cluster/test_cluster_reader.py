"""Queries without a tower: by the stores known before, also in new processes, or by option."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core import EmbeddedCluster
from dafka_core.config.node_options import NO_KEYS
from dafka_core.errors import ConfigError, NoStoreError, StoreUnreachableError, TowerNotFoundError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import cluster_reader, connections, timing
from dafka_spark.cluster.cluster_reader import (
    MAX_STORES_FILES,
    NO_MESH,
    KnownStoresReader,
    NamedStoresReader,
    remember,
    remembered,
)
from dafka_spark.cluster.connections import Connections
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink import store_session
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.sink.store_session import PickedStore
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.sinks import PARTITION, Sink, numbers, read, stage, texts
from tests.integration.cluster.stores import (
    Batch,
    Logged,
    Patch,
    Serve,
    close_connections,
    count_requests,
)
from tests.unit.dafka_spark.streams import positions

NewProcess = Callable[[], None]
TOWER = "tower:1:2"
DIRECTORY = cluster_reader._directory
STORES = [StoreLocation(name, (f"grpc://{name}:1",)) for name in ("A" * 32, "B" * 32)]
NOWHERE = "grpc://127.0.0.1:1"


@pytest.fixture
def topic() -> str:
    return "t"


@pytest.fixture
def new_process(patch: Patch, tmp_path: Path) -> NewProcess:
    """Make this process forget everything, as if it were the process of the next batch."""
    patch.setattr(cluster_reader, "_directory", DIRECTORY)
    patch.setattr(tempfile, "tempdir", str(tmp_path))

    def begin() -> None:
        close_connections()
        store_session._registries.clear()
        cluster_reader._written.clear()

    begin()
    return begin


def write(pair: Sink, number: int, picked: PickedStore | None = None, **given: str) -> PickedStore:
    """Write ten rows of one task, as a micro-batch's."""
    options = pair.options(**given)
    picked = picked or pick_store(options)
    with WriterFactory(options, picked) as factory, factory.open(pair.tp) as writer:
        staged = stage(writer, numbers(10 * number, 10 * number + 10))
        assert staged.end == 10 * number + 10
        pair.commit(staged, store=picked.store, **given)
        return picked


def held(pair: Sink, index: int = 0) -> list[bytes]:
    """Return the records of a store at its known location."""
    location = StoreLocation(pair.cluster.stores[index], pair.cluster.locations(index))
    with StoreClient(location) as client:
        (state,) = client.transaction_states([pair.tp], timeout_s=PATIENCE_S)
        return read(client, pair.tp, state.end)


def count(**given: str) -> int:
    return sum(batch.num_rows for batch in Batch(**given).batches())


def stream(**given: str) -> DafkaMicroBatchStream:
    options = {"subscribe": "t", "startingOffsets": "earliest", **given}
    return DafkaMicroBatchStream(full(), SourceOptions.of(options).for_stream())


def reads(source: DafkaMicroBatchStream, start: dict[str, Any], end: int) -> bool:
    """Wait until a stream finds the records up to ``end``, and return whether it reads them."""

    def latest() -> dict[str, Any]:
        return source.latestOffset(start, ReadAllAvailable())

    wait_until(lambda: positions(latest()) == {PARTITION: end}, "all records are found")
    (task,) = source.partitions(start, latest())
    count: int = sum(batch.num_rows for batch in source.read(task))
    return count == end


# -- known stores ----------------------------------------------------------------------------------


def test_queries_continue_in_new_processes(pair: Sink, new_process: NewProcess) -> None:
    write(pair, 0)
    pair.cluster.kill_tower()
    for number in (1, 2):
        new_process()
        write(pair, number)
    assert held(pair, 1) == texts(0, 30)
    gone = pair.cluster.stores[1]
    pair.cluster.kill_store(1)
    new_process()
    write(pair, 3)
    assert held(pair) == texts(0, 40)
    new_process()
    assert count(tower=pair.cluster.tower) == 40
    with pytest.raises(ConfigError, match=f"1 store has answered; away: store {gone} "):
        count(tower=pair.cluster.tower, minStores="2")
    # Without a store it fails.
    pair.cluster.kill_store(0)
    new_process()
    with pytest.raises(TowerNotFoundError), pair.session() as session:
        session.refresh()


def test_known_stores_that_have_all_died_are_no_empty_cluster(
    pair: Sink, new_process: NewProcess
) -> None:
    pair.patch.setattr(timing, "KNOWN_TOWER_S", 0.1)
    given = {"tower": pair.cluster.tower, "subscribePattern": "t", "fetchTimeoutMs": "500"}
    write(pair, 0)
    pair.cluster.kill_tower()
    new_process()
    assert count(**given) == 10
    for index in (1, 0):
        pair.cluster.kill_store(index)
    with pytest.raises(ConfigError, match="no store with Arrow Flight answers"):
        pick_store(pair.options(deliveryTimeoutMs="500"))
    with pytest.raises(NoStoreError, match="no store was heard of") as failed:
        count(**given)
    assert failed.value.__notes__[0].startswith("grpc")


def test_known_stores_report_each_other_now_and_then(serve: Serve, patch: Patch) -> None:
    """Not at each trigger, which would wait for a store without an answer."""
    store = serve("one")
    known = [store.location, StoreLocation("two", (NOWHERE,))]
    reader = KnownStoresReader(known, TowerNotFoundError([TOWER], 1.0), NO_KEYS)
    asked = count_requests(patch, "stores")
    for _ in range(3):
        assert [*reader.endpoints()] == ["one"]
    assert asked == {}
    store.backend.others = {"two": (NOWHERE,)}
    patch.setattr(timing, "LOCATION_MAX_AGE_S", 0.0)
    assert [each.store for each in reader.missing_stores(timeout_s=30)] == ["two"]
    assert [*reader.endpoints()] == ["one", "two"]
    assert asked == {"stores": 3}


def test_a_sink_continues_on_a_new_machine(
    pair: Sink, new_process: NewProcess, tmp_path: Path
) -> None:
    """The driver, which knows the stores, sends their locations to its tasks."""
    write(pair, 0)
    pair.cluster.kill_tower()
    new_process()
    picked = pick_store(pair.options())  # the driver's machine remembers them
    new_process()
    for file in (tmp_path / f"dafka-{os.getuid()}").iterdir():
        file.unlink()
    write(pair, 1, picked)
    assert held(pair) == held(pair, 1) == texts(0, 20)
    pair.cluster.kill_store(1 - pair.cluster.stores.index(picked.store))
    write(pair, 2, picked)  # finds the stores that are left


@pytest.mark.usefixtures("new_process")
def test_a_source_continues_at_any_trigger_interval(pair: Sink) -> None:
    """Idle connections are closed, but not the reader of a query."""
    readers = Connections(cluster_reader.join, idle_s=0.02)
    pair.patch.setattr(connections, "_readers", readers)
    write(pair, 0)
    source = stream(tower=pair.cluster.tower)
    start = source.initialOffset()
    pair.cluster.kill_tower()
    connections._clients.close()
    write(pair, 1)
    with readers.borrow(pair.options().mesh_address) as reader:
        assert not isinstance(reader, KnownStoresReader)
    assert reads(source, start, 20)
    readers.close()


def test_a_machine_remembers_stores(new_process: NewProcess, tmp_path: Path) -> None:
    assert remembered(TOWER) == []
    remember(TOWER, STORES)
    new_process()
    assert remembered(TOWER) == STORES
    remember(TOWER, STORES[:1])
    assert remembered(TOWER) == STORES[:1]
    remember(TOWER, [])  # no store answers now, but one may return
    assert remembered(TOWER) == STORES[:1]
    # A file that others can write is ignored.
    (directory,) = tmp_path.iterdir()
    (file,) = directory.iterdir()
    directory.chmod(0o777)
    assert remembered(TOWER) == []
    directory.chmod(0o700)
    assert remembered(TOWER) == STORES[:1]
    file.write_bytes(b'{"v": 1, "stores": [1]}')
    assert remembered(TOWER) == []
    remember(TOWER, STORES)
    assert remembered(TOWER) == STORES
    for number in range(MAX_STORES_FILES):
        remember(f"tower{number}:1:2", STORES)
    assert remembered(TOWER) == []


# -- option ``stores`` -----------------------------------------------------------------------------


def uri(pair: Sink, index: int = 0) -> str:
    return next(each for each in pair.cluster.locations(index) if each.startswith("grpc://"))


def have_met(pair: Sink) -> bool:
    """Return whether each store knows the other: without a tower they cannot meet."""

    def known(index: int) -> set[str]:
        with StoreClient(StoreLocation("", (uri(pair, index),))) as client:
            return {each.store for each in client.stores(timeout_s=9)}

    return all(pair.cluster.stores[1 - index] in known(index) for index in (0, 1))


def test_a_query_reads_and_writes_without_a_mesh(pair: Sink) -> None:
    wait_until(lambda: have_met(pair), "both stores know each other")
    pair.cluster.kill_tower()
    both = ",".join(uri(pair, index) for index in (0, 1))
    for number in (0, 1):
        assert len(write(pair, number, tower="", stores=both).locations) == 2
    each = [uri(pair, index) for index in (0, 1)]
    wait_until(lambda: [count(stores=at) for at in each] == [20, 20], "the stores exchange records")
    # A stream continues when one of them dies.
    source = stream(stores=both)
    start = source.initialOffset()
    gone = pair.cluster.stores[1]
    pair.cluster.kill_store(1)
    (missing,) = NamedStoresReader(each, NO_KEYS).missing_stores(timeout_s=30)
    assert missing.store == each[1]
    assert reads(source, start, 20)
    for least in ("2", "all"):
        with pytest.raises(ConfigError, match=f"1 store has answered; away: store {gone} "):
            count(stores=both, minStores=least)


def test_a_store_that_the_others_have_forgotten_is_not_missing(serve: Serve) -> None:
    store = serve("one")
    reader = NamedStoresReader(store.location.locations[-1:], NO_KEYS)
    for names in (["two"], []):
        store.backend.others = dict.fromkeys(names, (NOWHERE,))
        assert [each.store for each in reader.missing_stores(timeout_s=30)] == names


def test_stores_are_asked_at_the_uris_of_the_option(
    own: EmbeddedCluster, pair: Sink, logged: Logged
) -> None:
    wait_until(lambda: have_met(pair), "both stores know each other")
    here = uri(pair).replace("127.0.0.1", "localhost")
    reader = NamedStoresReader([here], NO_KEYS)
    for only_in_a_mesh in (reader.read, reader.times):
        with pytest.raises(StoreUnreachableError, match=NO_MESH):
            only_in_a_mesh(pair.tp, 0, 1, timeout_s=1)
    assert reader.stores() == [here]
    assert [each[0] for each in reader.endpoints().values()] == [here]
    assert reader.stores() == [own.stores[0]]
    # Stores that are not read are logged, whether unnamed or unreachable.
    assert [each.store for each in reader.missing_stores(timeout_s=30)] == [own.stores[1]]
    write(pair, 0, tower="", stores=uri(pair))
    assert count(stores=f"{NOWHERE},{uri(pair)}") == 10
    for name in (NOWHERE, own.stores[1]):
        assert f"store {name} (" in logged.text
    assert "if it is gone for ever, leave it out of option stores" in logged.text
    with pytest.raises(ConfigError, match="1 store has answered; away: "):
        count(stores=uri(pair), minStores="all")
    with pytest.raises(ConfigError, match=f"1 store has answered; away: .*store {NOWHERE} "):
        count(stores=f"{NOWHERE},{uri(pair)}", minStores="2")
    with pytest.raises(NoStoreError, match=f"through {NOWHERE}") as failed:
        count(stores=NOWHERE, fetchTimeoutMs="500")
    assert failed.value.__notes__[0].startswith(f"{NOWHERE}: ")
    with pytest.raises(ConfigError, match="no store with Arrow Flight answers"):
        pick_store(SinkOptions.of({"stores": NOWHERE, "topic": "t", "deliveryTimeoutMs": "500"}))


def test_invalid_stores_are_refused() -> None:
    for stores in ("localhost:1", ""):
        with pytest.raises(ConfigError, match="must be like grpc://HOST:PORT"):
            SourceOptions.of({"subscribe": "t", "stores": stores})
