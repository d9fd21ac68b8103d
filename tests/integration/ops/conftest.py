"""One node of each kind in this process, with its metrics."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dafka_core import Consumer, MetricsEndpoint, Producer, Store, Tower, serve_metrics
from dafka_core.nodes.node import Node
from dafka_core.ops.node_metrics import WatchedNode
from dafka_kafka.gateway import Gateway

ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}


class Nodes(NamedTuple):
    """All kinds that can be watched."""

    tower: Tower
    store: Store
    gateway: Gateway
    producer: Producer
    consumer: Consumer


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("store")
    with (
        Tower(**ANY_PORTS) as tower,
        Store(directory, tower=tower.tower) as store,
        Gateway(store, listen="127.0.0.1:0") as gateway,
        Producer("flights", tower=tower.tower) as producer,
        Consumer(tower=tower.tower) as consumer,
    ):
        consumer.subscribe("flights")
        producer.publish_many([b"value"] * 1_000)
        producer.flush(30.0)
        yield Nodes(tower, store, gateway, producer, consumer)


@pytest.fixture(scope="module")
def endpoint(nodes: Nodes) -> Iterator[MetricsEndpoint]:
    with serve_metrics(*nodes) as made:
        yield made


def told(node: Node, topics: int = 10) -> dict[tuple[str, tuple[str, ...]], Any]:
    """Return the values of a node's metrics, by name and labels; check that each occurs once."""
    found = WatchedNode(node, topics).samples()
    values = {(each.metric.name.removeprefix("dafka_"), each.labels): each.value for each in found}
    assert len(values) == len(found)
    return values


class Answer(NamedTuple):
    status: int
    text: str
    content_type: str


def ask(url: str, **headers: str) -> Answer:
    """Return the answer to a GET."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as found:
            return Answer(found.status, found.read().decode(), found.headers["Content-Type"])
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(), error.headers["Content-Type"])
