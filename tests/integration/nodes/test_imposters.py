"""An owner of a key who says that he is where others are, or asks for what is others'.

What the simulation with byzantine peers has found, with real sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, NotAcknowledgedError, Producer, Store, Tower
from dafka_core.config.node_options import MAX_RECORD_BYTES
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import NodeBeacon, encode_node_beacon, endpoint_of
from dafka_core.protocol.codec import subscription
from dafka_core.testing import wait_until
from tests.integration.nodes.locked import FAST, Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path / "keys")
    keys.allow("mallory", "produce", "consume", produce=("own.*",), consume=("own.*",))
    return keys


@pytest.fixture
def tower(keys: Keys) -> Iterator[str]:
    with Tower(**ANY_PORTS, **keys.of("tower")) as running:
        yield running.tower


@pytest.fixture
def mallory(keys: Keys, tower: str, open_nodes: ExitStack) -> RawPeer:
    pair, tower_key = keys.pair("mallory"), keys.pair("tower").public
    return open_nodes.enter_context(RawPeer(tower, key=pair, tower_key=tower_key))


@pytest.fixture
def store(keys: Keys, tower: str, open_nodes: ExitStack, tmp_path: Path) -> Store:
    options = keys.of("store") | FAST
    return open_nodes.enter_context(Store(tmp_path / "store", tower=tower, **options))


def options(keys: Keys, tower: str) -> dict[str, Any]:
    return {"tower": tower, **keys.of("client"), **FAST}


def at(mallory: RawPeer, mesh: Any) -> list[bytes]:
    """Mallory says that he is where another node is."""
    return encode_node_beacon(NodeBeacon(mallory.address, mesh.beacon.host, mesh.beacon.port))


def test_who_announces_himself_at_anothers_place_takes_no_connection(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    producer.publish(b"0")
    producer.flush(PATIENCE_S)
    peers, place = producer.parts[0].peers, endpoint_of(store.parts.mesh.beacon, "")

    def refuses(many: int = peers.invalid_count + 50) -> bool:
        mallory.send_beacon(at(mallory, store.parts.mesh))
        return bool(peers.invalid_count > many)

    wait_until(refuses)
    assert peers.table.node_at(place) == store.address
    assert peers.renewal_count == 0
    producer.publish(b"1")
    producer.flush(PATIENCE_S)


def test_a_producer_is_never_connected_to_itself(
    keys: Keys, tower: str, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    """It asks stores for its last record, and would take its own answer for a store's."""
    patient = {"peer_expiry_ms": 5_000, "close_timeout_s": 0.1}
    producer = Producer("t", **options(keys, tower) | patient)
    open_nodes.push(lambda *error: producer.__exit__(GeneratorExit, GeneratorExit(), None))
    mesh = producer.parts[0]
    place = endpoint_of(mesh.beacon, "")

    def is_announced() -> bool:
        mallory.send_beacon(at(mallory, mesh))
        return place in mesh.peers.table

    wait_until(is_announced)
    producer.publish(b"on no disk")
    with pytest.raises(NotAcknowledgedError):
        producer.flush(2)  # some twenty of its own beacons, and FETCHes
    assert place in mesh.peers.table
    assert producer.acknowledged == 0


def test_what_was_refused_to_one_is_not_taken_from_another_when_he_goes(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    """ZeroMQ tells that all ends that was asked for, also what was never granted."""
    consumer = open_nodes.enter_context(Consumer(**options(keys, tower)))
    consumer.subscribe("t")
    mesh, to = store.parts.mesh, consumer.address
    wait_until(lambda: mesh._subscribers.layouts("t", to) == [True])
    kept = [mesh.limits.letters(), mesh.limits.stores_taking(0)]
    own = b"AC\0%b\0%d" % (to.encode(), MAX_RECORD_BYTES)
    before = mesh.security.refusal_count
    for prefix in (own, subscription(m.DirectRecordBatch, to)):
        mallory.subscribe(prefix)
    wait_until(lambda: mesh.security.refusal_count >= before + 2)
    mallory.close()
    wait_until(lambda: not len(mesh.security._refused))
    wait_until(lambda: not mesh.peers.table.knows(mallory.address))
    assert mesh._subscribers.layouts("t", to) == [True]
    assert [mesh.limits.letters(), mesh.limits.stores_taking(0)] == kept
