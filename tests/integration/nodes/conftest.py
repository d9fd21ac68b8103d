"""A tower in a thread, and what joins it.  Nodes of these tests live in the test's own process,
unless the test kills them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, EmbeddedCluster, Producer, Reader, Store, Tower
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from tests.forked import ForkedCluster
from tests.integration.nodes.locked import FAST, Keys
from tests.integration.nodes.peers import ANY_PORTS, RawPeer

Start = Callable[..., Store]
Produce = Callable[..., Producer]
Consume = Callable[..., Consumer]
Read = Callable[..., Reader]
Raw = Callable[..., RawPeer]

DEFAULTS: dict[str, Any] = {"head_interval_ms": 100}


@pytest.fixture
def keys() -> Keys | None:
    """The keys of tower and store; tests of clusters with keys have a fixture of this name."""
    return None


@pytest.fixture
def tower(keys: Keys | None) -> Iterator[str]:
    with Tower(**ANY_PORTS, **(keys.of("tower") if keys else {})) as running:
        yield running.tower


@pytest.fixture
def open_nodes() -> Iterator[ExitStack]:
    """Closes what a test enters into it, in reverse order and before the tower."""
    with ExitStack() as nodes:
        yield nodes


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Start:
    """Starts stores, each with a directory of this name."""

    def make(name: str = "store", **options: Any) -> Store:
        return open_nodes.enter_context(Store(tmp_path / name, **{"tower": tower} | options))

    return make


@pytest.fixture
def store(tower: str, open_nodes: ExitStack, tmp_path: Path, keys: Keys | None) -> Store:
    options = keys.of("store") | FAST if keys else {}
    return open_nodes.enter_context(Store(tmp_path / "store", tower=tower, **options))


@pytest.fixture
def peer(raw: Raw, store: Store) -> RawPeer:
    """A C producer and consumer in one, which the store hears and which hears the store."""
    met = raw(subscription(m.Fetch))
    kinds = (m.Ack, m.DirectHead, m.DirectRecord, m.StoreHello)
    for kind in kinds:
        met.subscribe(subscription(kind, met.address))
    met.wait_until_subscribed(subscription(m.ConsumerHello, store.address))
    met.wait_for(m.StoreHello)
    return met


@pytest.fixture
def produce(tower: str, open_nodes: ExitStack) -> Produce:
    """Makes producers; those a test leaves open are dropped at its end, whatever they wait for."""

    def make(topic: str, **options: Any) -> Producer:
        producer = Producer(topic, **DEFAULTS | {"tower": tower} | options)
        open_nodes.push(lambda *error: producer.__exit__(GeneratorExit, GeneratorExit(), None))
        return producer

    return make


@pytest.fixture
def consume(tower: str, open_nodes: ExitStack) -> Consume:
    """Makes consumers that are subscribed already."""

    def make(*topics: str, **options: Any) -> Consumer:
        consumer = open_nodes.enter_context(Consumer(**{"tower": tower} | options))
        for topic in topics:
            consumer.subscribe(topic)
        return consumer

    return make


@pytest.fixture
def read(tower: str, open_nodes: ExitStack) -> Read:
    def make(**options: Any) -> Reader:
        return open_nodes.enter_context(Reader(**{"tower": tower} | options))

    return make


@pytest.fixture
def raw(tower: str, open_nodes: ExitStack) -> Raw:
    def make(*subscriptions: bytes, **options: Any) -> RawPeer:
        return open_nodes.enter_context(RawPeer(tower, *subscriptions, **options))

    return make


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster of the test's own, to be killed in part."""
    with ForkedCluster() as running:
        yield running
