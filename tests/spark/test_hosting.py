"""A partition written straight into stores: complete whatever happens to its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pyarrow as pa
import pytest
from dafka_spark.sink.at_least_once import open_at_least_once
from dafka_spark.sink.hosted_writer import HostedWriter

from dafka_core import EmbeddedCluster, Producer
from dafka_core.errors import NotAcknowledgedError, OffsetConflictError
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition
from dafka_spark.cluster import store_registry
from dafka_spark.options import SinkOptions
from dafka_spark.sink import hosted_writer, row_buffer

PARTITION = "0A3F8E1BBB578999443B8818C5851AFC"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def own() -> Iterator[EmbeddedCluster]:
    """Two stores of the test's own, to be killed."""
    with EmbeddedCluster(stores=2) as running:
        yield running


def options(cluster: EmbeddedCluster, **given: object) -> SinkOptions:
    given = {"tower": cluster.tower, "delivery": "at-least-once", **given}
    return SinkOptions.of({key: str(value) for key, value in given.items()})


def hosted(cluster: EmbeddedCluster, topic: str, **given: object) -> HostedWriter:
    publisher = open_at_least_once(
        options(cluster, **given), TopicPartition(topic, PARTITION)
    ).publisher
    assert isinstance(publisher, HostedWriter)
    return publisher


def numbers(start: int, stop: int) -> pa.Array:
    return pa.array([b"%d" % number for number in range(start, stop)])


def held(cluster: EmbeddedCluster, topic: str, index: int = 0) -> list[bytes]:
    """What one store has of the partition."""
    address = cluster.stores[index]
    clients = store_registry.StoreRegistry(options(cluster).mesh_address)
    try:
        (client,) = [each for each in clients.anew() if each.location.store == address]
        end = next((info.end for info in client.heads([topic], timeout_s=PATIENCE_S)), 0)
        return read(client, topic, end)
    finally:
        clients.close()


def read(client: StoreClient, topic: str, end: int) -> list[bytes]:
    found = client.read(
        TopicPartition(topic, PARTITION), 0, end, times=False, max_records=1000, max_bytes=1 << 20,
        timeout_s=PATIENCE_S,
    )  # fmt: skip
    return [value for batch in found for value in batch.values]


def other_than(cluster: EmbeddedCluster, publisher: HostedWriter) -> int:
    """The index of the store that is not the host."""
    return 1 - cluster.stores.index(publisher._host.location.store)


def test_rows_are_put_in_order_and_a_writer_goes_on(shared: EmbeddedCluster) -> None:
    for start in (0, 10, 20):
        with hosted(shared, "order") as publisher:
            assert publisher.next_offset == start
            assert publisher.publish_many(numbers(start, start + 4)) == start
            assert publisher.publish_many(numbers(start + 4, start + 10)) == start + 4
            assert publisher.next_offset == start + 10
            publisher.flush(PATIENCE_S)
    assert held(shared, "order") == numbers(0, 30).to_pylist()


def test_a_process_that_was_told_of_stores_does_not_look_for_them(
    shared: EmbeddedCluster,
) -> None:
    with closing(store_registry.StoreRegistry(options(shared).mesh_address)) as finding:
        store_locations = [client.location for client in finding.anew()]
    assert store_locations
    # Nobody answers here, so looking would find nothing.
    nowhere = options(shared, tower="127.0.0.1:9:9").via
    with closing(store_registry.StoreRegistry(nowhere, store_locations)) as told:
        for find in (told.current, told.known):
            (client,) = find()
            assert client.location in store_locations
            client.put(TopicPartition("told", PARTITION), 0, timeout_s=PATIENCE_S).close()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_values_of_any_kind_become_bytes(shared: EmbeddedCluster, kind: pa.DataType) -> None:
    topic = f"kind-{kind}"
    with hosted(shared, topic) as publisher:
        publisher.publish_many(pa.array(["é", ""]).cast(kind))
        publisher.flush(PATIENCE_S)
    assert held(shared, topic) == ["é".encode(), b""]


def test_small_batches_become_blocks(
    shared: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_buffer, "BLOCK_ROWS", 100)
    with hosted(shared, "blocks") as publisher:
        for start in range(0, 250, 10):
            publisher.publish_many(numbers(start, start + 10))
        assert [len(sent.values) for sent in publisher._retained] in ([100, 100], [100], [])
        publisher.publish_many(numbers(250, 1005))
        publisher.flush(PATIENCE_S)
        assert not publisher._retained
    assert held(shared, "blocks") == numbers(0, 1005).to_pylist()


def test_what_is_not_on_disk_yet_is_bounded(
    shared: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_buffer, "BLOCK_ROWS", 10)
    monkeypatch.setattr(hosted_writer, "RETAINED_BYTES", 2000)
    with hosted(shared, "bounded") as publisher:
        for start in range(0, 1000, 10):
            publisher.publish_many(numbers(start, start + 10))
            assert publisher._retained_bytes <= 2000
        publisher.flush(PATIENCE_S)
    assert held(shared, "bounded") == numbers(0, 1000).to_pylist()


def test_another_attempt_beside_it_costs_no_row(
    shared: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_buffer, "BLOCK_ROWS", 10)
    with hosted(shared, "zombie") as late, hosted(shared, "zombie") as early:
        late.publish_many(numbers(0, 10))
        late.flush(PATIENCE_S)
        early.publish_many(numbers(100, 130))
        early.flush(PATIENCE_S)
        late.publish_many(numbers(10, 30))
        late.flush(PATIENCE_S)
    found = held(shared, "zombie")
    assert set(numbers(0, 30).to_pylist()) | set(numbers(100, 130).to_pylist()) == set(found)
    assert found[:10] == numbers(0, 10).to_pylist()


def test_without_flight_the_mesh_takes_the_rows() -> None:
    with EmbeddedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        with open_at_least_once(
            options(cluster), TopicPartition("t", PARTITION)
        ).publisher as publisher:
            assert isinstance(publisher, Producer)
            publisher.publish_many(numbers(0, 10))
            publisher.flush(PATIENCE_S)


def test_more_acknowledgements_than_hosts_are_the_meshs_matter(shared: EmbeddedCluster) -> None:
    with ExitStack() as stack:
        opened = open_at_least_once(options(shared, acks=2), TopicPartition("acks", PARTITION))
        publisher = stack.enter_context(opened.publisher)
        assert isinstance(publisher, Producer)
        publisher.publish_many(numbers(0, 1))
        with pytest.raises(NotAcknowledgedError):
            publisher.flush(0.5)
        stack.push(lambda *error: publisher.__exit__(SystemExit, SystemExit(), None))
        stack.pop_all().__exit__(SystemExit, SystemExit(), None)


def test_acks_are_of_distinct_stores(own: EmbeddedCluster) -> None:
    with hosted(own, "t", acks=2) as publisher:
        publisher.publish_many(numbers(0, 1000))
        publisher.flush(PATIENCE_S)
        assert held(own, "t", 0) == held(own, "t", 1) == numbers(0, 1000).to_pylist()
        own.kill_store(other_than(own, publisher))
        publisher.publish_many(numbers(1000, 1010))
        with pytest.raises(NotAcknowledgedError):
            publisher.flush(1.0)


def test_it_goes_on_at_the_other_store_when_the_host_dies(own: EmbeddedCluster) -> None:
    with hosted(own, "t", acks=1) as publisher:
        other = other_than(own, publisher)
        publisher.publish_many(numbers(0, 1000))
        publisher.flush(PATIENCE_S)
        replica = next(c for c in publisher._known if c.location.store == own.stores[other])
        assert replica.wait(TopicPartition("t", PARTITION), 1000, timeout_s=PATIENCE_S) == 1000
        own.kill_store(1 - other)
        publisher.publish_many(numbers(1000, 2000))
        publisher.flush(PATIENCE_S)
        assert publisher.next_offset == 2000
    assert held(own, "t", 0) == numbers(0, 2000).to_pylist()


def test_it_goes_on_at_the_same_store_started_again(own: EmbeddedCluster) -> None:
    own.kill_store(1)
    with hosted(own, "t") as publisher:
        publisher.publish_many(numbers(0, 1000))
        publisher.flush(PATIENCE_S)
        own.kill_store(0)
        own.start_store(0)
        publisher.publish_many(numbers(1000, 2000))
        publisher.flush(PATIENCE_S)
    assert held(own, "t") == numbers(0, 2000).to_pylist()


def test_rows_that_only_the_dead_host_had_are_not_silently_lost(own: EmbeddedCluster) -> None:
    own.kill_store(1)
    with hosted(own, "t", deliveryTimeoutMs=1500) as publisher:
        publisher.publish_many(numbers(0, 10))
        publisher.flush(PATIENCE_S)
        own.kill_store(0)
        own.start_store(1)  # it has none of them
        publisher.publish_many(numbers(10, 20))
        with pytest.raises(NotAcknowledgedError, match="10 records are not acknowledged"):
            publisher.flush(3.0)


def test_a_put_that_is_refused_says_where_the_partition_ends(shared: EmbeddedCluster) -> None:
    with hosted(shared, "refused") as publisher:
        publisher.publish_many(numbers(0, 10))
        publisher.flush(PATIENCE_S)
        client = publisher._host
        for start in (0, 5, 11):
            put = client.put(TopicPartition("refused", PARTITION), start, timeout_s=PATIENCE_S)
            with closing(put), pytest.raises(OffsetConflictError) as caught:
                _write(put, start)
            assert caught.value.end == 10


def _write(put: PutStream, start: int) -> None:
    put.write(numbers(0, 3))
    put.wait_durable(start + 3, timeout_s=PATIENCE_S)
