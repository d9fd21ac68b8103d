"""Nodes, Flight, the gateway, the console and metrics at ``[::1]``."""

import http.client
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer

from dafka_console.server import Console
from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.config.node_options import keys_in
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation, parse_locations
from dafka_core.ops.checks import check_all
from dafka_core.ops.endpoint import serve_metrics
from dafka_core.ops.gathering import gathered
from dafka_core.testing import PATIENCE_S
from dafka_kafka.gateway import Gateway
from tests.integration.nodes.locked import Keys

HOST = "[::1]"
ANYWHERE = {"sub_address": f"tcp://{HOST}:0", "pub_address": f"tcp://{HOST}:*"}


@pytest.fixture
def tower() -> Iterator[str]:
    with Tower(**ANYWHERE) as tower:
        assert tower.tower.startswith(HOST)
        yield tower.tower


@pytest.fixture
def store(tower: str, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", tower=tower, host="auto") as store:
        yield store


def get(url: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("keys", [False, True])
def test_records_pass_through_the_mesh_and_flight(tmp_path: Path, keys: bool) -> None:
    files = Keys(tmp_path / "keys") if keys else None

    def options(name: str) -> dict[str, Any]:
        return {} if files is None else files.of(name)

    with Tower(**ANYWHERE, **options("tower")) as tower:
        client = {"tower": tower.tower, "host": HOST, **options("client")}
        at = {"tower": tower.tower, "host": "auto", **options("store")}
        with (
            Store(tmp_path / "store", **at) as store,
            Consumer(**client) as consumer,
            Producer("t", **client) as producer,
            Reader(**client) as reader,
        ):
            consumer.subscribe("t")
            producer.publish_many([b"one", b"two"])
            producer.flush(PATIENCE_S)
            assert [each.value for each in islice(consumer, 2)] == [b"one", b"two"]
            [info] = reader.partitions(["t"], timeout_s=PATIENCE_S)
            assert (info.earliest, info.end) == (0, 2)
            uri = reader.endpoints()[store.address][-1]
            assert urlsplit(uri).hostname == "::1"
            location = StoreLocation(store.address, parse_locations(uri))
            with StoreClient(location, keys_in(client)) as flight:
                assert flight.describe(timeout_s=PATIENCE_S).store == store.address
                assert flight.uri.endswith(f"[::1]:{urlsplit(uri).port}")


def test_kafkas_clients_connect_to_the_gateway(store: Store) -> None:
    with Gateway(store, listen="[::1]:0") as gateway:
        servers = str(gateway.advertised)
        producer = ConfluentProducer({"bootstrap.servers": servers})
        for value in (b"one", b"two"):
            producer.produce("t", value)
        assert producer.flush(PATIENCE_S) == 0
        settings = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
        confluent = ConfluentConsumer(settings)
        confluent.subscribe(["t"])
        assert {each.value() for each in confluent.consume(2, PATIENCE_S)} == {b"one", b"two"}
        confluent.close()
        pure = KafkaConsumer("t", bootstrap_servers=servers, auto_offset_reset="earliest")
        assert {each.value for each in islice(pure, 2)} == {b"one", b"two"}
        pure.close()


@pytest.mark.parametrize(("listen", "shown"), [("[::1]:0", "[::1]"), ("*:0", "localhost")])
def test_browsers_and_prometheus_connect(store: Store, tower: str, listen: str, shown: str) -> None:
    node = {"tower": tower, "host": HOST, "insecure": True}
    with Console(node, listen=listen) as console:
        assert console.url == f"http://{shown}:{console.port}/"
        assert get(f"http://[::1]:{console.port}/api/overview") == 200
    with serve_metrics(store, listen=listen, insecure=True) as endpoint:
        assert endpoint.url == f"http://{shown}:{endpoint.address.port}"
        assert get(f"http://[::1]:{endpoint.address.port}/metrics") == 200


@pytest.mark.usefixtures("store")
def test_the_doctor_finds_nothing_wrong(tower: str) -> None:
    facts = gathered({"tower": tower, "host": HOST})
    assert [each for each in check_all(facts) if each.remedy] == []
