"""Permissions of keys, and the owner of a key that exceeds them.

``mallory`` has a key of the cluster: it may produce to topics ``own.*`` and consume these.
"""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, NotAcknowledgedError, Producer, Reader, Store, Tower
from dafka_core.config.node_options import StoreOptions
from dafka_core.errors import ConfigError, NotAllowedError
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.store_identity import new_identity
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import NodeBeacon, encode_node_beacon, endpoint_of
from dafka_core.protocol.codec import subscription
from dafka_core.system.files import replace_file
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Consume, Produce
from tests.integration.nodes.content import flushed
from tests.integration.nodes.locked import FAST, Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path / "keys")
    keys.allow("mallory", "produce", "consume", produce=("own.*",), consume=("own.*",))
    return keys


@pytest.fixture
def mallory(keys: Keys, tower: str, open_nodes: ExitStack) -> RawPeer:
    return open_nodes.enter_context(peer_of(keys, tower, "mallory"))


def peer_of(keys: Keys, tower: str, name: str, address: str = "") -> RawPeer:
    tower_key = keys.pair("tower").public
    return RawPeer(tower, b"", key=keys.pair(name), tower_key=tower_key, address=address)


def options(keys: Keys, tower: str, name: str = "client") -> dict[str, Any]:
    return {"tower": tower, **keys.of(name), **FAST}


def lying(keys: Keys, tower: str, role: str) -> dict[str, Any]:
    """Mallory's options with an own directory, where it has this role for all topics."""
    own = keys.away / role
    shutil.copytree(keys.allowed, own)
    path = own / "mallory.key"
    path.write_text(path.read_text().replace(f'{role} = "own.*"', f'{role} = "*"'))
    return options(keys, tower, "mallory") | {"allowed_keys": str(own)}


def forbidden(node: Any) -> int:
    mesh = node.mesh
    return int(mesh.traffic.refused["forbidden"])


def test_a_key_is_for_its_topics_and_its_roles(
    keys: Keys, tower: str, store: Store, consume: Consume, produce: Produce
) -> None:
    reader = consume("own.x", "t", **lying(keys, tower, "consume"))
    for name, topic in (("client", "t"), ("mallory", "own.x")):
        with Producer(topic, **options(keys, tower, name)) as producer:
            flushed(producer, [topic.encode()])
    assert next(iter(reader)).value == b"own.x"
    for name, known in (("mallory", {"own.x"}), ("client", {"own.x", "t"})):
        with Reader(**options(keys, tower, name)) as asking:
            found = asking.partitions(timeout_s=PATIENCE_S)
            assert {each.topic for each in found} == known
    refused = produce("t", **lying(keys, tower, "produce") | {"close_timeout_s": 0.1})
    before = forbidden(store)
    refused.publish(b"not its topic")
    wait_until(lambda: forbidden(store) > before)
    assert refused.acknowledged == 0
    assert reader.poll(0) is None


def test_a_forbidden_topic_is_an_error_by_the_own_directory(
    keys: Keys, tower: str, consume: Consume
) -> None:
    with pytest.raises(NotAllowedError, match=r"mallory may produce 'own\.\*'.* produce to 't'"):
        Producer("t", **options(keys, tower, "mallory"))
    with pytest.raises(ConfigError, match="is not an address of key mallory, as these begin"):
        Producer("own.x", address="F" * 32, **options(keys, tower, "mallory"))
    consumer = consume("own.x", **options(keys, tower, "mallory"))
    with pytest.raises(NotAllowedError, match="and not consume 't'"):
        consumer.subscribe("t")
    assert consumer.subscription == ["own.x"]


def test_refused_subscriptions_are_logged_once_with_the_key(
    keys: Keys, store: Store, mallory: RawPeer, caplog: pytest.LogCaptureFixture
) -> None:
    mallory.wait_until_met(store.address)
    for kind in (m.RecordMessage, m.Head, m.Ack):
        mallory.subscribe(subscription(kind, "secret"))
    mallory.subscribe(subscription(m.RecordMessage, "own.later"))
    wait_until(lambda: store.mesh.has_subscriber("own.later"))
    said = [each for each in caplog.messages if "to send a node with key mallory" in each]
    assert len(said) == 1
    assert said[0].startswith("refused to send a node with key mallory each ")


def test_a_node_with_an_unknown_address_or_key_is_logged_with_the_remedy(
    keys: Keys, tower: str, store: Store, open_nodes: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    open_nodes.enter_context(peer_of(keys, tower, "mallory", address="F" * 32))
    told = f"node {'F' * 32} is not an address of key mallory, as these begin with "
    wait_until(lambda: told in caplog.text, "the tower to say it")
    assert "list it under 'addresses' in mallory.key" in caplog.text
    # A client without the store's key, which is no protocol error.
    lacking = keys.away / "lacking"
    shutil.copytree(keys.allowed, lacking)
    (lacking / "store.key").unlink()
    away = options(keys, tower) | {"allowed_keys": str(lacking)}
    consumer = open_nodes.enter_context(Consumer(**away))
    told = f"(the last one: key {keys.pair('store').public.decode()} of a node is not in {lacking})"
    wait_until(lambda: f"reason forbidden {told}" in caplog.text, "the client to say it")
    mesh = consumer.mesh
    assert forbidden(consumer) > 0 == mesh.traffic.refused["beacon"]


def test_permissions_are_changed_at_run_time(
    keys: Keys, tower: str, store: Store, consume: Consume, produce: Produce
) -> None:
    reader = consume("t", **lying(keys, tower, "consume"))
    producer = flushed(produce("t", **options(keys, tower)), [b"0"])
    meshes = [store.mesh, producer.mesh]
    change(keys, 'consume = "own.*"', 'consume = "*"')
    records = iter(reader)
    assert next(records).value == b"0"
    wait_until(lambda: not any(map(refuses_records, meshes)))
    change(keys, 'consume = "*"', 'consume = "own.*"')
    wait_until(lambda: all(map(refuses_records, meshes)), "its new subscriptions to be refused")
    honest = consume("t", **options(keys, tower))
    before = reader.mesh.traffic.records_received
    flushed(producer, [b"secret"])
    assert [next(iter(honest)).value for _ in range(2)] == [b"0", b"secret"]
    assert reader.mesh.traffic.records_received == before


def change(keys: Keys, old: str, new: str) -> None:
    """Changes what mallory may, by a file that is whole at each moment."""
    path = keys.allowed / "mallory.key"
    replace_file(path, path.read_text().replace(old, new).encode(), 0o644)


def refuses_records(mesh: Mesh) -> bool:
    """Return True if a connected node was refused subscriptions."""
    return bool(mesh.security.refused.counts)


def test_addresses_from_before_there_were_keys_are_listed(
    keys: Keys, tower: str, store: Store, tmp_path: Path
) -> None:
    old = "0123456789ABCDEF" * 2
    with pytest.raises(ConfigError, match=rf"{old}.*under 'addresses' in client\.key") as no:
        Producer("t", address=old, **options(keys, tower))
    assert no.value.option == "address"
    keys.allow("heir", "produce", addresses=(old,))
    with Producer("t", address=old, **options(keys, tower, "heir")) as producer:
        flushed(producer, [b"0"])
    # So is a store's address.
    (tmp_path / "kept").mkdir()
    with Tower(**ANY_PORTS) as open_, Store(tmp_path / "kept", tower=open_.tower) as before:
        address = before.address
    with pytest.raises(ConfigError, match=rf"{address}.*under 'addresses' in store\.key"):
        Store(tmp_path / "kept", **options(keys, tower, "store"))
    assert StoreOptions.build(options(keys, tower, "store")).secret_key_file
    new = new_identity(tmp_path / "kept", StoreOptions.build(options(keys, tower, "store")))
    assert new[:12] == store.address[:12]


def at(mallory: RawPeer, mesh: Any) -> list[bytes]:
    """Mallory's beacon with the place of another node."""
    return encode_node_beacon(NodeBeacon(mallory.address, mesh.beacon.host, mesh.beacon.port))


def test_an_announcement_at_the_place_of_another_node_takes_no_connection(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, produce: Produce
) -> None:
    producer = flushed(produce("t", **options(keys, tower)), [b"0"])
    mesh, place = producer.mesh, endpoint_of(store.mesh.beacon, "")
    peers = mesh.peers

    def refuses(many: int = mesh.traffic.refused["forbidden"] + 50) -> bool:
        mallory.send_beacon(at(mallory, store.mesh))
        return bool(mesh.traffic.refused["forbidden"] > many)

    wait_until(refuses)
    assert mesh.traffic.refused["beacon"] == 0  # the beacon itself is valid
    assert peers.table.node_at(place) == store.address
    assert peers.renewal_count == 0
    flushed(producer, [b"1"])


def test_a_producer_is_never_connected_to_itself(
    keys: Keys, tower: str, mallory: RawPeer, produce: Produce
) -> None:
    """It asks stores for its last record, and would take its own answer for a store's."""
    producer = produce("t", **options(keys, tower))
    mesh = producer.mesh
    place = endpoint_of(mesh.beacon, "")
    announced = [mallory.address.encode(), place.encode()]

    def is_announced() -> bool:
        mallory.send_beacon(at(mallory, mesh))
        return announced in [each[1:3] for each in mallory.beacons]

    wait_until(is_announced)
    producer.publish(b"on no disk")
    with pytest.raises(NotAcknowledgedError):
        producer.flush(2)  # some twenty of its own beacons, and FETCHes
    assert place not in mesh.peers.table
    assert producer.acknowledged == 0
