"""Option ``stores``: reading and writing by Arrow Flight without a mesh."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core import EmbeddedCluster
from dafka_core.config.node_options import NO_KEYS
from dafka_core.errors import ConfigError, NoStoreError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.cluster.cluster_reader import NO_MESH, NamedStoresReader
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.transactions import PARTITION, commit, factory, stage
from tests.unit.dafka_spark.streams import positions

TOPIC = "numbers"
TP = TopicPartition(TOPIC, PARTITION)
NOWHERE = "grpc://127.0.0.1:1"


def uri(cluster: EmbeddedCluster, index: int = 0) -> str:
    return next(each for each in cluster.locations(index) if each.startswith("grpc://"))


def write(stores: str, version: int, **given: str) -> int:
    """Write ten rows as one task; return the number of stores that took them."""
    options = SinkOptions.of({"stores": stores, "topic": TOPIC, **given})
    with factory(options) as task, task.open(TP) as writer:
        written = stage(writer, 10 * version, 10 * version + 10)
        commit(options, task.picked, written)
        assert written.end == 10 * version + 10
        return len(task.session.locations)


def source(stores: str, **given: str) -> SourceOptions:
    offsets = {"startingOffsets": "earliest", "subscribe": TOPIC}
    return SourceOptions.of({"stores": stores, **offsets, **given})


def count(options: SourceOptions) -> int:
    reader = DafkaBatchReader(full(), options.for_batch())
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


def have_met(cluster: EmbeddedCluster) -> bool:
    """Return whether each store knows the other: without a tower they cannot meet."""

    def known(index: int) -> set[str]:
        with StoreClient(StoreLocation("", (uri(cluster, index),))) as client:
            return {each.store for each in client.stores(timeout_s=9)}

    return all(cluster.stores[1 - index] in known(index) for index in (0, 1))


def test_a_query_reads_and_writes_without_a_mesh(own: EmbeddedCluster) -> None:
    wait_until(lambda: have_met(own), "both stores know each other")
    own.kill_tower()
    both = ",".join(uri(own, index) for index in (0, 1))
    assert [write(both, version) for version in (0, 1)] == [2, 2]
    each = [source(uri(own, index)) for index in (0, 1)]
    wait_until(lambda: [*map(count, each)] == [20, 20], "the stores exchange records")
    # A stream continues when one of them dies.
    stream = DafkaMicroBatchStream(full(), source(both).for_stream())
    start = stream.initialOffset()
    own.kill_store(1)

    def end() -> dict[str, Any]:
        return stream.latestOffset(start, ReadAllAvailable())

    wait_until(lambda: positions(end()) == {PARTITION: 20}, "all records are found")
    (task,) = stream.partitions(start, end())
    assert sum(batch.num_rows for batch in stream.read(task)) == 20


def test_stores_are_asked_at_the_uris_of_the_option(
    own: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    here = uri(own).replace("127.0.0.1", "localhost")
    reader = NamedStoresReader([here], NO_KEYS)
    for only_in_a_mesh in (reader.read, reader.times):
        with pytest.raises(StoreUnreachableError, match=NO_MESH):
            only_in_a_mesh(TP, 0, 1, timeout_s=1)
    assert reader.stores() == [here]
    assert [each[0] for each in reader.endpoints().values()] == [here]
    assert reader.stores() == [own.stores[0]]
    # Stores that are not read are logged, whether unnamed or unreachable.
    assert [each.store for each in reader.missing_stores(timeout_s=30)] == [own.stores[1]]
    write(uri(own), 0)
    assert count(source(f"{NOWHERE},{uri(own)}")) == 10
    for name in (NOWHERE, own.stores[1]):
        assert f"store {name} (" in caplog.text
    with pytest.raises(ConfigError, match="1 store has answered; away: "):
        count(source(uri(own), minStores="all"))
    with pytest.raises(NoStoreError, match=f"through {NOWHERE}") as failed:
        count(source(NOWHERE, fetchTimeoutMs="500"))
    assert failed.value.__notes__[0].startswith(f"{NOWHERE}: ")
    with pytest.raises(ConfigError, match="no store with Arrow Flight answers"):
        write(NOWHERE, 1, deliveryTimeoutMs="500")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"stores": "localhost:1"}, "must be like grpc://HOST:PORT"),
        ({"stores": ""}, "must be like grpc://HOST:PORT"),
        ({"stores": NOWHERE, "fetch": "mesh"}, "reads from the mesh"),
    ],
)
def test_invalid_stores_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SourceOptions.of({"subscribe": TOPIC, **given})
