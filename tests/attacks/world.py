"""A small cluster with honest nodes, in the open or with keys, and an attacker."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from dafka_core import Consumer, Producer, Store, Tower
from dafka_core.errors import ClosedError, DafkaError
from tests.integration.nodes.locked import FAST, Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer

TOPIC, SECRET = "t", b"secret %d"
"""The topic of honest nodes.  An insider's key is for topics ``own.*``."""


class Attacker(Enum):
    """Who attacks whom."""

    IN_THE_OPEN = "in the open"  # nobody has keys
    STRANGER = "a stranger"  # all nodes have keys, and the attacker has none
    INSIDER = "an insider"  # he has a key of the cluster, for something else


class World(NamedTuple):
    """The honest nodes."""

    store: Store | None
    producer: Producer
    consumer: Consumer
    options: dict[str, Any]

    @property
    def victim(self) -> str:
        """The honest producer's partition."""
        return self.producer.address

    def publish(self) -> None:
        """Check that honest nodes continue to work."""
        self.producer.publish(SECRET % self.producer.next_offset)
        if self.store is not None:
            self.producer.flush(PATIENCE_S)


@contextmanager
def attacked(
    directory: Path, who: Attacker, *subscriptions: bytes, with_store: bool = True
) -> Iterator[tuple[World, RawPeer]]:
    """The honest nodes and the attacker."""
    keys = Keys(directory / "keys")
    keys.allow("mallory", "produce", "consume", produce=("own.*",), consume=("own.*",))
    is_locked = who is not Attacker.IN_THE_OPEN

    def own(name: str) -> dict[str, Any]:
        return keys.of(name) if is_locked else {}

    with ExitStack() as nodes:
        tower = nodes.enter_context(Tower(**ANY_PORTS, **own("tower"))).tower
        options = {"tower": tower, **FAST, **own("client")}
        store = None
        if with_store:
            keeps = {"tower": tower, **FAST, **own("store")}
            store = nodes.enter_context(Store(directory / "store", **keeps))
        key = keys.pair("mallory") if who is Attacker.INSIDER else None
        tower_key = keys.pair("tower").public
        raw = nodes.enter_context(RawPeer(tower, *subscriptions, key=key, tower_key=tower_key))
        consumer = nodes.enter_context(Consumer(**options))
        consumer.subscribe(TOPIC)
        producer = Producer(TOPIC, **options | {"close_timeout_s": 0.1})
        nodes.push(lambda *error: _end(producer))
        yield World(store, producer, consumer, options), raw


def _end(producer: Producer) -> None:
    with suppress(ClosedError, DafkaError):  # fenced, or without a store that acknowledges
        producer.close()
