"""Nodes with keys: admission, refusal, and the messages about both."""

import os
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from dafka_core import Consumer, Producer, Store, Tower, TowerNotFoundError
from dafka_core.config.node_options import MAX_RECORD_BYTES, ReaderOptions, TowerOptions
from dafka_core.errors import ConfigError
from dafka_core.nodes import addresses
from dafka_core.nodes.connection_quotas import Connection, ends_of
from dafka_core.nodes.security import Security
from dafka_core.protocol import beacons
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import ConsumerHello, RecordMessage
from dafka_core.protocol.record_limits import announcement
from dafka_core.security.key_files import read_public, read_secret
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Produce, Start
from tests.integration.nodes.content import flushed
from tests.integration.nodes.locked import FAST, Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


def endpoint_of(store: Store) -> str:
    return beacons.endpoint_of(store.mesh.beacon, "")


def knows(store: Store, node: Producer | Store) -> bool:
    return node.address in store.mesh.peers.table.nodes()


def joined(keys: Keys, name: str, tower: str) -> dict[str, Any]:
    return {"tower": tower, **keys.of(name), **FAST}


def wait_until_refused(why: str, **options: Any) -> None:
    """Either end may refuse first, and a node retries."""

    def is_told() -> bool:
        with pytest.raises(TowerNotFoundError) as error:
            Consumer(**options, tower_timeout_s=0.3)
        return f"does not let this node in: {why}" in str(error.value)

    wait_until(is_told, why)


def test_a_node_without_a_key_receives_nothing_but_the_reason(tower: str, store: Store) -> None:
    """As C nodes do it, and as ours without options."""
    with RawPeer(tower, b"") as stranger:
        why = "it lets in owners of keys only: set secret_key_file and allowed_keys"
        wait_until_refused(why, tower=tower)
        assert (stranger.heard, stranger.subscribed, stranger.beacons) == ([], [], [])
    # Nor does a program that knows the store's address.
    with zmq.Context() as context, context.socket(zmq.SUB) as eavesdropper:
        monitor = eavesdropper.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        eavesdropper.subscribe(b"")
        eavesdropper.connect(endpoint_of(store))
        assert monitor.poll(int(PATIENCE_S * 1000))
        assert not eavesdropper.poll(0)
        monitor.close(0)
        eavesdropper.close(0)


def test_a_key_is_let_in_when_it_is_allowed_and_shut_out_when_it_is_not(
    keys: Keys, tower: str, store: Store, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    keys.make("late", "produce")
    late = joined(keys, "late", tower)
    own = read_public(keys.away / "late.key").key
    why = f"it refuses this node's key {own}, which is not in its directory"
    wait_until_refused(why, **late)
    told = [each.getMessage() for each in caplog.records if own in each.getMessage()]
    assert any(f"refused a connection from 127.0.0.1 with key {own}" in each for each in told)
    shutil.copy(keys.away / "late.key", keys.allowed)
    producer = produce("t", **late | {"publish_timeout_s": 5, "close_timeout_s": 0.1})
    flushed(producer, [b"allowed"])
    keeper = produce("k", **joined(keys, "client", tower))
    (keys.allowed / "late.key").unlink()
    wait_until(lambda: not knows(store, producer))
    producer.publish(b"revoked")
    flushed(keeper, [b"kept"])
    assert producer.acknowledged == 1


def test_a_node_connects_anew_if_a_tower_refused_only_its_beacons(
    keys: Keys, tmp_path: Path, open_nodes: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """A tower may learn of a key between a node's two connections; here it is two towers."""
    strict = tmp_path / "strict"
    shutil.copytree(keys.allowed, strict)
    (strict / "client.key").unlink()
    allowed = {"allowed_keys": str(strict)}
    refusing = open_nodes.enter_context(Tower(**ANY_PORTS, **keys.of("tower") | allowed))
    other = open_nodes.enter_context(Tower(**ANY_PORTS, **keys.of("tower")))
    # A consumer that hears a producer does not take its tower for silent.
    open_nodes.enter_context(Producer("t", **joined(keys, "client", other.tower)))
    mixed = f"127.0.0.1:{refusing.sub_port}:{other.pub_port}"
    open_nodes.enter_context(Consumer(**joined(keys, "client", mixed)))
    wait_until(lambda: "refused a connection from 127.0.0.1" in caplog.text)
    shutil.copy(keys.allowed / "client.key", strict)
    wait_until(lambda: refusing.relay.discovered.count() == 1)


def test_a_connection_is_approved_by_the_newest_keys(keys: Keys) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as asking:
        security = Security(TowerOptions.build(keys.of("tower")), context, is_tower=True)
        keys.allow("late", "consume")
        asking.connect("inproc://zeromq.zap.01")
        key = z85.decode(keys.pair("late").public)
        asking.send_multipart([b"1.0", b"", b"dafka", b"127.0.0.1", b"", b"CURVE", key])
        security.check_connections(0.0)
        assert asking.recv_multipart()[2] == b"200"
        security.zap.close(0)


def test_a_tower_is_trusted_by_its_key_only(keys: Keys, open_nodes: ExitStack) -> None:
    in_clear = open_nodes.enter_context(Tower(**ANY_PORTS))
    wait_until_refused("it has no key", **joined(keys, "client", in_clear.tower))
    keys.make("false", "tower")
    false = open_nodes.enter_context(Tower(**ANY_PORTS, **keys.of("false")))
    why = "it has no key, or not the one that this node's allowed_keys has for it"
    wait_until_refused(why, **joined(keys, "client", false.tower))
    # Of several allowed ones each has its turn.
    shutil.copy(keys.away / "false.key", keys.allowed)
    keys.allow("another", "tower")
    Consumer(**joined(keys, "client", false.tower)).close()


def test_a_node_that_others_do_not_allow_reads_nothing_of_them(
    keys: Keys, start: Start, tmp_path: Path, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    """Each node has a directory of its own."""
    strict = tmp_path / "strict"
    shutil.copytree(keys.allowed, strict)
    (strict / "client.key").unlink()
    store = start(**keys.of("store") | FAST | {"allowed_keys": str(strict)})
    producer = produce("t", **keys.of("client"), **FAST)
    producer.publish(b"unheard")
    other = start("other", **keys.of("store"), **FAST)
    wait_until(lambda: producer.acknowledged == 1)
    wait_until(lambda: knows(store, other))
    assert not knows(store, producer)
    peers, tried = producer.mesh.peers, set[float]()

    def has_tried_again() -> bool:
        tried.add(peers._connections[endpoint_of(store)].since)
        return len(tried) > 2

    wait_until(has_tried_again)
    assert caplog.text.count(f"{store.address} at {endpoint_of(store)} does not let") == 1
    assert peers.renewal_count == 0  # of a refused connection


def test_a_connection_ends_when_its_key_is_shut_out(keys: Keys, store: Store) -> None:
    """Whatever the other end does, which is no node of ours here, and joins no tower."""
    made, server = (read_secret(keys.of(each)["secret_key_file"]) for each in ("client", "store"))
    with zmq.Context() as context, context.socket(zmq.SUB) as reader:
        reader.curve_publickey, reader.curve_secretkey = made
        reader.curve_serverkey = server.public
        monitor = reader.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        reader.subscribe(subscription(ConsumerHello, "reader"))
        reader.connect(endpoint_of(store))
        assert event_of(monitor) == zmq.EVENT_HANDSHAKE_SUCCEEDED
        assert not monitor.poll(100)
        (keys.allowed / "client.key").unlink()
        assert event_of(monitor) == zmq.EVENT_DISCONNECTED
        # It tries again, and is not let in.
        assert event_of(monitor) == zmq.EVENT_DISCONNECTED
        monitor.close(0)
        reader.close(0)


def event_of(monitor: Any) -> int:
    assert monitor.poll(int(PATIENCE_S * 1000))
    return int(parse_monitor_message(monitor.recv_multipart())["event"])


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Treat 127.0.0.1 as an address that other machines reach: some machines have none."""
    monkeypatch.delenv("DAFKA_INSECURE", raising=False)
    monkeypatch.setattr(addresses, "is_loopback", lambda host: False)
    return monkeypatch


def test_without_keys_nothing_is_opened_to_other_machines_by_default(
    elsewhere: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = "to other machines, which can then read and write everything: set secret_key"
    with pytest.raises(ConfigError, match=opened) as refused:
        Tower(**ANY_PORTS)
    assert refused.value.option == "sub_address"
    with Tower(**ANY_PORTS, insecure=True) as tower:
        assert "pub_address = 'tcp://127.0.0.1:0' requires no keys: any client" in caplog.text
        with pytest.raises(ConfigError, match=opened) as refused:
            Store(tmp_path / "store", tower=tower.tower)
        assert refused.value.option == "host"
        elsewhere.setenv("DAFKA_INSECURE", "yes")
        with pytest.raises(ConfigError, match="'DAFKA_INSECURE' = 'yes': must be true or false"):
            Store(tmp_path / "store", tower=tower.tower)
        elsewhere.setenv("DAFKA_INSECURE", "true")
        with Store(tmp_path / "store", tower=tower.tower):
            assert "flight_port = '0' requires no keys: any client" in caplog.text


def test_a_store_with_keys_may_serve_flight_to_other_machines(
    elsewhere: pytest.MonkeyPatch, keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Tower(**ANY_PORTS, **keys.of("tower")) as tower,
        Store(tmp_path / "store", tower=tower.tower, **keys.of("store")) as store,
    ):
        assert store.locations[-1].startswith("grpc+tls://")
    assert "requires no keys" not in caplog.text


def test_a_refused_announcement_is_logged_as_such_beside_other_refusals(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    keys.allow("late", "consume", consume=("late.*",))
    client, late = (read_public(keys.allowed / f"{name}.key") for name in ("client", "late"))
    own = f"{client.permissions.prefix}{'0' * 20}"
    with zmq.Context() as context:
        security = Security(ReaderOptions.build(keys.of("store")), context)
        security.zap.close(0)

        def said(key: str, prefix: bytes) -> str:
            caplog.clear()
            assert security.granted(key, b"\1" + prefix) is None
            (line,) = caplog.messages
            return line

        assert said(client.key, announcement("store", own, MAX_RECORD_BYTES)) == (
            f"node {own} is a store, and its key client is not: add role store to client.key"
        )
        line = said(late.key, announcement("consumer", own, MAX_RECORD_BYTES))
        assert line.startswith(f"node {own} is not an address of key late, as these begin with ")
        line = said(late.key, subscription(RecordMessage, "secret"))
        assert line.startswith(
            "refused to send a node with key late each RecordMessage of 'secret'"
        )


def test_only_the_connection_that_is_meant_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ closes it, and another connection gets its number, during the check."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends: list[tuple[socket.socket, socket.socket]] = []
        for _ in range(2):
            theirs = stack.enter_context(socket.create_connection(listener.getsockname()))
            ends.append((theirs, stack.enter_context(listener.accept()[0])))
        (meant, ours), (other, others) = ends

        def dup(descriptor: int) -> int:
            copy = real(descriptor)
            os.dup2(others.fileno(), ours.fileno())
            return copy

        real = os.dup
        monkeypatch.setattr(os, "dup", dup)
        connection = Connection(ours.fileno(), meant.getsockname(), 0)
        assert [connection.shut_down() for _ in range(2)] == [True, False]
        meant.settimeout(PATIENCE_S)
        assert meant.recv(1) == b""
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)


def test_looking_at_a_connection_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as file:
        before = os.dup(file.fileno())
        os.close(before)
        assert ends_of(file.fileno()) == ((), ())
        after = os.dup(file.fileno())
        os.close(after)
        assert after == before
