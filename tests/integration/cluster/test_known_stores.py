"""A running query continues without a tower, also in new processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core import EmbeddedCluster
from dafka_core.errors import TowerNotFoundError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import connections, known_stores
from dafka_spark.cluster.cluster_reader import KnownStoresReader
from dafka_spark.cluster.connections import Connections
from dafka_spark.cluster.known_stores import MAX_FILES, remember, remembered
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink import store_session
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.sink.store_session import PickedStore, StoreSession
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.transactions import (
    PARTITION,
    commit,
    numbers,
    options,
    read,
    stage,
    texts_of,
)

NewProcess = Callable[[], None]
TOPIC = "numbers"
TP = TopicPartition(TOPIC, PARTITION)
TOWER = "tower:1:2"
DIRECTORY = known_stores._directory
STORES = [StoreLocation(name, (f"grpc://{name}:1",)) for name in ("A" * 32, "B" * 32)]


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NewProcess:
    """Make this process forget everything, as if it were the process of the next batch."""
    monkeypatch.setattr(known_stores, "_directory", DIRECTORY)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def begin() -> None:
        for kept in (connections._readers, connections._clients):
            kept.close()
        store_session._registries.clear()
        known_stores._written.clear()

    begin()
    return begin


def write(cluster: EmbeddedCluster, version: int, picked: PickedStore | None = None) -> PickedStore:
    """Ten rows of one task, as a micro-batch's."""
    given = options(cluster, topic=TOPIC)
    picked = picked or pick_store(given)
    with WriterFactory(given, picked) as factory, factory.open(TP) as writer:
        commit(given, picked.store, stage(writer, 10 * version, 10 * version + 10))
        return picked


def held(cluster: EmbeddedCluster, index: int = 0) -> list[bytes]:
    """Return the records of a store at its known location."""
    location = StoreLocation(cluster.stores[index], cluster.locations(index))
    with StoreClient(location) as client:
        (state,) = client.transaction_states([TP], timeout_s=PATIENCE_S)
        return read(client, TP, state.end)


def test_a_sink_continues_in_new_processes(own: EmbeddedCluster, new_process: NewProcess) -> None:
    write(own, 0)
    own.kill_tower()
    for version in (1, 2):
        new_process()
        write(own, version)
    assert held(own, 1) == texts_of(numbers(0, 30))
    own.kill_store(1)
    new_process()
    write(own, 3)
    assert held(own) == texts_of(numbers(0, 40))


def test_a_sink_continues_on_a_new_machine(
    own: EmbeddedCluster, new_process: NewProcess, tmp_path: Path
) -> None:
    """The driver, which knows the stores, sends their locations to its tasks."""
    write(own, 0)
    own.kill_tower()
    new_process()
    picked = pick_store(options(own, topic=TOPIC))  # the driver's machine remembers them
    new_process()
    for file in (tmp_path / f"dafka-{os.getuid()}").iterdir():
        file.unlink()
    write(own, 1, picked)
    assert held(own) == held(own, 1) == texts_of(numbers(0, 20))
    own.kill_store(1 - own.stores.index(picked.store))
    write(own, 2, picked)  # finds the stores that are left


def test_a_source_continues_at_any_trigger_interval(
    own: EmbeddedCluster, new_process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections are closed, but not the reader of a query."""
    readers = Connections(connections._join, idle_s=0.02)
    monkeypatch.setattr(connections, "_readers", readers)
    write(own, 0)
    source = DafkaMicroBatchStream(full(), source_options(own).for_stream())
    start = source.initialOffset()
    own.kill_tower()
    connections._clients.close()
    write(own, 1)
    with readers.borrow(options(own).mesh_address) as reader:
        assert not isinstance(reader, KnownStoresReader)
    end: dict[str, object] = {}

    def has_all() -> bool:
        end.update(source.latestOffset(start, ReadAllAvailable()))
        return SourceOffset.parse(end).positions.get(TP) == 20

    wait_until(has_all, "the source finds the new records")
    (task,) = source.partitions(start, end)
    assert sum(batch.num_rows for batch in source.read(task)) == 20
    readers.close()


def test_a_read_without_a_tower_asks_the_known_stores(
    own: EmbeddedCluster, new_process: NewProcess
) -> None:
    write(own, 0)
    own.kill_tower()
    new_process()
    source = DafkaBatchReader(full(), source_options(own).for_batch())
    rows = sum(batch.num_rows for task in source.partitions() for batch in source.read(task))
    assert rows == 10
    # Without a store it fails.
    own.kill_store(0)
    own.kill_store(1)
    new_process()
    with pytest.raises(TowerNotFoundError), StoreSession(options(own).mesh_address) as session:
        session.refresh()


def source_options(cluster: EmbeddedCluster) -> SourceOptions:
    given = {"tower": cluster.tower, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return SourceOptions.of(given)


def test_a_machine_remembers_stores(new_process: NewProcess) -> None:
    assert remembered(TOWER) == []
    remember(TOWER, STORES)
    new_process()
    assert remembered(TOWER) == STORES
    remember(TOWER, STORES[:1])
    assert remembered(TOWER) == STORES[:1]
    remember(TOWER, [])  # no store answers now, but one may return
    assert remembered(TOWER) == STORES[:1]
    for number in range(MAX_FILES):
        remember(f"tower{number}:1:2", STORES)
    assert remembered(TOWER) == []


def test_a_file_that_others_can_write_is_ignored(new_process: NewProcess, tmp_path: Path) -> None:
    remember(TOWER, STORES)
    (directory,) = tmp_path.iterdir()
    (file,) = directory.iterdir()
    directory.chmod(0o777)
    assert remembered(TOWER) == []
    directory.chmod(0o700)
    assert remembered(TOWER) == STORES
    file.write_bytes(b'{"v": 1, "stores": [1]}')
    assert remembered(TOWER) == []
