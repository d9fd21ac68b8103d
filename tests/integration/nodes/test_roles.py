"""What the owner of a key may do in a cluster, and an owner who does what he may not.

``mallory`` has a key of the cluster: it may produce to topics ``own.*`` and consume these.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.config.node_options import StoreOptions
from dafka_core.errors import ConfigError, NotAllowedError
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import TopicPartition
from dafka_core.nodes import security
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.store_identity import new_identity
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import NodeBeacon, encode_node_beacon
from dafka_core.protocol.codec import encode, subscription
from dafka_core.protocol.record_limits import announcement
from dafka_core.security.permissions import PREFIX_DIGITS, address_prefix
from dafka_core.system.files import replace_file
from dafka_core.testing import wait_until
from tests.integration.nodes.locked import FAST, Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer, new_address

LATER = EpochId(2**31, 1, 1)
"""A life newer than any."""


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
def store(keys: Keys, tower: str, open_nodes: ExitStack, tmp_path: Path) -> Store:
    options = keys.of("store") | FAST
    return open_nodes.enter_context(Store(tmp_path / "store", tower=tower, **options))


@pytest.fixture
def mallory(keys: Keys, tower: str, open_nodes: ExitStack) -> RawPeer:
    return open_nodes.enter_context(raw(keys, tower, "mallory"))


def raw(keys: Keys, tower: str, name: str, address: str = "") -> RawPeer:
    tower_key = keys.pair("tower").public
    return RawPeer(tower, b"", key=keys.pair(name), tower_key=tower_key, address=address)


def address_of(keys: Keys, name: str) -> str:
    """One that is a key's own."""
    return address_prefix(keys.pair(name).public) + new_address()[PREFIX_DIGITS:]


def options(keys: Keys, tower: str, name: str = "client") -> dict[str, Any]:
    return {"tower": tower, **keys.of(name), **FAST}


def lying(keys: Keys, tower: str, role: str) -> dict[str, Any]:
    """Mallory's, where his own directory says that he has this role for all topics."""
    own = keys.away / role
    shutil.copytree(keys.allowed, own)
    path = own / "mallory.key"
    path.write_text(path.read_text().replace(f'{role} = "own.*"', f'{role} = "*"'))
    return options(keys, tower, "mallory") | {"allowed_keys": str(own)}


def forbidden(node: Any) -> int:
    mesh = node.parts.mesh if isinstance(node, Store) else node.parts[0]
    return int(mesh.traffic.refused(mesh.peers)["forbidden"])


def until_forbidden(node: Any, mallory: RawPeer, *messages: m.Message) -> None:
    """Each of the messages is refused, and nothing else comes of it."""
    for message in messages:
        before = forbidden(node)

        def is_refused(message: m.Message = message, before: int = before) -> bool:
            mallory.send(message)  # again, since a subscription may be under way
            time.sleep(0.02)
            return forbidden(node) > before

        wait_until(is_refused, str(message))


def published(producer: Producer, *values: bytes) -> None:
    for value in values:
        producer.publish(value)
    producer.flush(PATIENCE_S)


def test_a_key_is_for_its_topics_and_its_roles(
    keys: Keys, tower: str, store: Store, open_nodes: ExitStack
) -> None:
    reader = open_nodes.enter_context(Consumer(**lying(keys, tower, "consume")))
    for topic in ("own.x", "t"):
        reader.subscribe(topic)
    for name, topic in (("client", "t"), ("mallory", "own.x")):
        with Producer(topic, **options(keys, tower, name)) as producer:
            published(producer, topic.encode())
    assert next(iter(reader)).value == b"own.x"
    for name, known in (("mallory", {"own.x"}), ("client", {"own.x", "t"})):
        with Reader(**options(keys, tower, name)) as asking:
            found = asking.partitions(timeout_s=PATIENCE_S)
            assert {each.topic for each in found} == known
    refused = Producer("t", **lying(keys, tower, "produce") | {"close_timeout_s": 0.1})
    open_nodes.push(lambda *error: refused.__exit__(GeneratorExit, GeneratorExit(), None))
    before = forbidden(store)
    refused.publish(b"not its topic")
    wait_until(lambda: forbidden(store) > before)
    assert refused.acknowledged == 0
    assert reader.poll(0) is None


def test_who_may_not_is_told_at_once_by_his_own_directory(
    keys: Keys, tower: str, open_nodes: ExitStack
) -> None:
    with pytest.raises(NotAllowedError, match=r"mallory may produce 'own\.\*'.* produce to 't'"):
        Producer("t", **options(keys, tower, "mallory"))
    consumer = open_nodes.enter_context(Consumer(**options(keys, tower, "mallory")))
    consumer.subscribe("own.x")
    with pytest.raises(NotAllowedError, match="and not consume 't'"):
        consumer.subscribe("t")
    assert consumer.subscription == ["own.x"]


def test_what_a_key_may_not_be_sent_is_said_once_and_by_name(
    keys: Keys, store: Store, mallory: RawPeer, caplog: pytest.LogCaptureFixture
) -> None:
    mallory.wait_until_met(store.address)
    before = store.parts.mesh.security.refusal_count
    for kind in (m.RecordMessage, m.Head, m.Ack):
        mallory.subscribe(subscription(kind, "secret"))
    wait_until(lambda: store.parts.mesh.security.refusal_count >= before + 3)
    said = [each for each in caplog.messages if "to send a node with key mallory" in each]
    assert len(said) == 1
    assert said[0].startswith("refused to send a node with key mallory each ")


def test_records_and_heads_of_others_are_not_forged(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    consumer = open_nodes.enter_context(Consumer(**options(keys, tower)))
    consumer.subscribe("t")
    consumer.subscribe("own.x")
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    published(producer, b"0")
    victim = producer.address
    forged = (
        m.RecordMessage("t", victim, 1, b"forged"),
        m.DirectRecord(store.address, "t", victim, 1, b"forged"),
        m.Head("t", victim, 1_000_000),
        # Nor in a partition of another topic that bears the name.
        m.RecordMessage("own.x", victim, 0, b"forged"),
    )
    until_forbidden(store, mallory, *forged)
    until_forbidden(consumer, mallory, m.Head("t", victim, 1_000_000), forged[0])
    # In one that is his own, of a topic that is not.
    until_forbidden(store, mallory, m.RecordMessage("t", mallory.address, 0, b"forged"))
    published(producer, b"1", b"2")
    records = iter(consumer)
    assert [next(records).value for _ in range(3)] == [b"0", b"1", b"2"]
    assert [each.tp for each in store.log.partitions()] == [TopicPartition("t", victim)]


def test_stores_are_not_spoken_for(
    keys: Keys, tower: str, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    """There is no store: an acknowledgement would be a lie, and so would any answer."""
    producer = Producer("t", **options(keys, tower) | {"close_timeout_s": 0.1})
    open_nodes.push(lambda *error: producer.__exit__(GeneratorExit, GeneratorExit(), None))
    producer.publish(b"unheard")
    victim, liar = producer.address, mallory.address
    lies = (
        m.Ack(victim, "t", 0),
        m.EpochAck(victim, "t", 0, liar, LATER),
        m.HistoryReply(victim, 0, liar, "t", victim, 1, LATER, ()),
    )
    until_forbidden(producer, mallory, *lies)
    assert producer.acknowledged == 0
    producer.publish(b"it is not fenced")
    consumer = open_nodes.enter_context(Consumer(**options(keys, tower)))
    to = consumer.address
    until_forbidden(
        consumer,
        mallory,
        m.StoreHello(to, liar),
        m.HeadsReply(to, 0, liar, 0, 1, ()),
        m.StoreEndpoints(to, liar, ("grpc://127.0.0.1:1",)),
        m.StoresKnown(to, liar, ()),
    )


def test_another_ones_producer_is_not_fenced(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    published(producer, b"0")
    asks = m.HistoryQuery(mallory.address, 1, "t", producer.address, LATER)
    until_forbidden(store, mallory, asks)
    until_forbidden(
        store, mallory, m.HistoryQuery(producer.address, 1, "t", mallory.address, LATER)
    )
    published(producer, b"1")
    assert producer.acknowledged == 2
    # Nor does who takes its address get as far.
    taken = f"is none of key mallory, whose addresses begin with {mallory.address[:12]}"
    with pytest.raises(ConfigError, match=taken):
        Producer("own.x", address=producer.address, **options(keys, tower, "mallory"))


def test_nothing_is_overheard(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    """He subscribes to everything, by nothing, by letters, and by others' addresses."""
    consumer = open_nodes.enter_context(Consumer(**options(keys, tower)))
    consumer.subscribe("t")
    for prefix in (b"M", b"r", b"Mt", b"rt", b"rt\0", b"Mow", b"H", b"D", b"Q"):
        mallory.subscribe(prefix)
    for kind in (m.DirectRecord, m.DirectRecordBatch, m.HeadsReply):
        mallory.subscribe(subscription(kind, consumer.address))
    mallory.subscribe(subscription(m.RecordBatchMessage, "own.x"))
    mallory.wait_until_met(store.address)
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    mallory.wait_until_met(producer.address)
    until_forbidden(store, mallory, m.Fetch(producer.address, mallory.address, "t", 0, 1))
    until_forbidden(store, mallory, m.Fetch(producer.address, consumer.address, "t", 0, 1))
    published(producer, b"secret")
    assert next(iter(consumer)).value == b"secret"
    # What he may hear comes after it all.
    with Producer("own.x", **options(keys, tower, "mallory")) as own:
        wait_until(lambda: own.parts[0].has_subscriber("own.x"))
        published(own, b"his own")
    mallory.wait_for(m.RecordBatchMessage)
    heard = b"".join(frame for frames in [*mallory.heard] for frame in frames)
    assert b"his own" in heard
    assert b"secret" not in heard
    assert producer.address.encode() not in heard


def test_nobody_says_that_he_is_another_node(
    keys: Keys, tower: str, store: Store, open_nodes: ExitStack
) -> None:
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    mesh = store.parts.mesh
    wait_until(lambda: mesh.peers.table.knows(producer.address))
    with (
        raw(keys, tower, "mallory", address=producer.address) as first,
        raw(keys, tower, "mallory", address="F" * 32) as second,
    ):
        for liar in (first, second):
            # What comes behind a lie by the same connection has been heard after it.
            for port in (1, 2):
                truth = NodeBeacon(address_of(keys, "mallory"), "127.0.0.1", port)

                def is_known(liar: RawPeer = liar, truth: NodeBeacon = truth) -> bool:
                    liar.send_beacon(encode_node_beacon(truth._replace(node=liar.address)))
                    liar.send_beacon(encode_node_beacon(truth))
                    return mesh.peers.table.knows(truth.node)

                wait_until(is_known)
        honest = open_nodes.enter_context(raw(keys, tower, "mallory"))
        wait_until(lambda: mesh.peers.table.knows(honest.address))
        assert not mesh.peers.table.knows("F" * 32)
        assert [node for node, _ in mesh.peers.table.addresses()].count(producer.address) == 1
        # Nor that he is a store, which producers would wait for.
        honest.subscribe(announcement("store", honest.address, 9_000_000))
        published(producer, b"0")
        assert producer.parts[0].limits.letters()["S"] == 1


def test_a_node_whose_address_or_key_is_not_known_is_named_and_what_to_do(
    keys: Keys, tower: str, store: Store, open_nodes: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    open_nodes.enter_context(raw(keys, tower, "mallory", address="F" * 32))
    told = f"node {'F' * 32} is none of key mallory, whose addresses begin with "
    wait_until(lambda: told in caplog.text, "the tower to say it")
    assert "list it under 'addresses' in mallory.key" in caplog.text
    # A client that has not the store's key: nobody speaks another protocol.
    lacking = keys.away / "lacking"
    shutil.copytree(keys.allowed, lacking)
    (lacking / "store.key").unlink()
    away = options(keys, tower) | {"allowed_keys": str(lacking)}
    consumer = open_nodes.enter_context(Consumer(**away))
    told = f"(the last one: key {keys.pair('store').public.decode()} of a node is not in {lacking})"
    wait_until(lambda: f"reason forbidden {told}" in caplog.text, "the client to say it")
    mesh = consumer.parts[0]
    assert forbidden(consumer) > 0 == mesh.traffic.refused(mesh.peers)["beacon"]


def test_what_a_key_may_is_changed_while_all_runs(
    keys: Keys, tower: str, store: Store, open_nodes: ExitStack
) -> None:
    reader = open_nodes.enter_context(Consumer(**lying(keys, tower, "consume")))
    reader.subscribe("t")
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    published(producer, b"0")
    meshes = [store.parts.mesh, producer.parts[0]]
    change(keys, 'consume = "own.*"', 'consume = "*"')
    records = iter(reader)
    assert next(records).value == b"0"
    wait_until(lambda: not any(map(refuses_records, meshes)))
    change(keys, 'consume = "*"', 'consume = "own.*"')
    wait_until(lambda: all(map(refuses_records, meshes)), "his new subscriptions to be refused")
    honest = open_nodes.enter_context(Consumer(**options(keys, tower)))
    honest.subscribe("t")
    before = reader.parts[0].traffic.records_received
    published(producer, b"secret")
    assert [next(iter(honest)).value for _ in range(2)] == [b"0", b"secret"]
    assert reader.parts[0].traffic.records_received == before


def change(keys: Keys, old: str, new: str) -> None:
    """Changes what mallory may, by a file that is whole at each moment."""
    path = keys.allowed / "mallory.key"
    replace_file(path, path.read_text().replace(old, new).encode(), 0o644)


def refuses_records(mesh: Mesh) -> bool:
    """Whether somebody who is connected was refused records of the topic."""
    prefix = subscription(m.RecordMessage, "t")
    return mesh.security._refused._prefixes[security._digest(prefix)] > 0


def test_addresses_from_before_there_were_keys_are_listed(
    keys: Keys, tower: str, store: Store, tmp_path: Path, open_nodes: ExitStack
) -> None:
    old = "0123456789ABCDEF" * 2
    with pytest.raises(ConfigError, match=rf"{old}.*under 'addresses' in client\.key") as no:
        Producer("t", address=old, **options(keys, tower))
    assert no.value.option == "address"
    keys.allow("heir", "produce", addresses=(old,))
    with Producer("t", address=old, **options(keys, tower, "heir")) as producer:
        published(producer, b"0")
    # The same of a store.
    (tmp_path / "kept").mkdir()
    with Store(tmp_path / "kept", tower=_open_tower(open_nodes)) as before:
        address = before.address
    with pytest.raises(ConfigError, match=rf"{address}.*under 'addresses' in store\.key"):
        Store(tmp_path / "kept", **options(keys, tower, "store"))
    assert StoreOptions.build(options(keys, tower, "store")).secret_key_file
    new = new_identity(tmp_path / "kept", StoreOptions.build(options(keys, tower, "store")))
    assert new[:12] == store.address[:12]


def _open_tower(open_nodes: ExitStack) -> str:
    return open_nodes.enter_context(Tower(**ANY_PORTS)).tower


def test_frames_of_all_kinds_do_no_harm(
    keys: Keys, tower: str, store: Store, mallory: RawPeer, open_nodes: ExitStack
) -> None:
    producer = open_nodes.enter_context(Producer("t", **options(keys, tower)))
    mallory.wait_until_subscribed(b"M")
    before = store.parts.mesh.invalid_count
    for frames in ([b""], [b"M"], [b"M" * 9_000], encode(m.GetHeads("", "x"))[:1] * 9):
        for _ in range(50):
            mallory.send_frames(frames)
    wait_until(lambda: store.parts.mesh.invalid_count > before)
    published(producer, b"0")
