"""A stranger opens ten thousand connections at a door of a cluster with keys, and leaves them.

Each sends one byte.  Owners of keys continue to work meanwhile.
"""

import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice

import confluent_kafka
import pytest

from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.config.node_options import keys_in
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from tests.forked import ForkedCluster
from tests.integration.kafka.locked import NAME, PASSWORD, write_users
from tests.integration.nodes.peers import PATIENCE_S

CONNECTIONS = 10_000

HEARD = 0.8  # the number open at one time, at least; fewer would prove nothing


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    users = tmp_path_factory.mktemp("kafka") / "users"
    write_users(users, NAME)
    with ForkedCluster(keys=True, kafka={"kafka_users": users}) as running:
        yield running


@contextmanager
def strangers(places: Sequence[str]) -> Iterator[None]:
    """Open connections to these places in turn, as long as open files are left."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    count = min(CONNECTIONS, before[1] // 2)
    try:
        with ExitStack() as opened:
            heard = 0
            for place in islice(cycle(places), count):
                host, _, port = place.rpartition(":")
                stranger = opened.enter_context(socket.socket())
                stranger.settimeout(PATIENCE_S)
                stranger.connect((host, int(port)))
                try:
                    stranger.send(b"\xff")
                    heard += 1
                except OSError:  # it was ended at once
                    pass
            assert heard >= HEARD * count
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def doors(cluster: EmbeddedCluster) -> dict[str, list[str]]:
    """The ports to which strangers can connect."""
    host, sub_port, pub_port = cluster.tower.split(":")
    with Producer("door", tower=cluster.tower, **cluster.key()) as producer:
        producer.publish(b"x")
        producer.flush(PATIENCE_S)
        found = producer.mesh.peers.table.addresses()
        [store] = cluster.stores
        [mesh] = [endpoint for node, endpoint in found if node == store]
    [tls] = [each for each in cluster.locations() if each.startswith("grpc+tls")]
    return {
        "tower": [f"{host}:{sub_port}", f"{host}:{pub_port}"],
        "store": [mesh.removeprefix("tcp://")],
        "flight": [tls.partition("//")[2]],
        "kafka": [cluster.bootstrap_servers],
    }


@pytest.mark.parametrize(
    "door", ["tower", pytest.param("store", marks=pytest.mark.nightly), "flight", "kafka"]
)
def test_ten_thousand_connections_of_a_stranger_keep_nobody_out(
    door: str, locked: EmbeddedCluster
) -> None:
    own, topic = locked.key(), f"beside-{door}"
    [tls] = [each for each in locked.locations() if each.startswith("grpc+tls")]
    with strangers(doors(locked)[door]):
        with Producer(topic, tower=locked.tower, **own) as producer:
            producer.publish_many([b"1", b"2", b"3"])
            producer.flush(PATIENCE_S)
        with Consumer(tower=locked.tower, start="earliest", **own) as consumer:
            consumer.subscribe(topic)
            values = [record.value for record in islice(consumer, 3)]
        assert values == [b"1", b"2", b"3"]
        with StoreClient(StoreLocation("", (tls,)), keys_in(own)) as client:
            assert topic in {each.topic for each in client.heads(None, timeout_s=PATIENCE_S)}
        told: list[object] = []
        by_kafka = confluent_kafka.Producer(
            {
                "bootstrap.servers": locked.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": NAME,
                "sasl.password": PASSWORD,
            }
        )
        by_kafka.produce("from-kafka", topic, on_delivery=lambda error, _: told.append(error))
        by_kafka.flush(PATIENCE_S)
        assert told == [None]
