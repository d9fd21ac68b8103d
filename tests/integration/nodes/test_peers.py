"""Connections to peers: how large what comes may be, and what happens when it is larger."""

import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from dafka_core import NoStoreError, NotAcknowledgedError, Reader, Store, Tower
from dafka_core.config.node_options import LAYOUTS
from dafka_core.model.records import TopicPartition
from dafka_core.nodes import addresses, mesh, peers, sockets
from dafka_core.nodes.security import RefusedNodeError
from dafka_core.nodes.sockets import close_watched, new_socket, watched
from dafka_core.protocol.beacons import TowerBeacon, encode_node_beacon
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_REPLY_BYTES, max_frame_bytes
from dafka_core.protocol.messages import DirectRecord, Fetch, Head, RecordMessage
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Consume, Produce, Raw
from tests.integration.nodes.content import flushed, values
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S

SMALL_BYTES = 4_096
LARGE_BYTES = MAX_REPLY_BYTES + 100_000
"""Above what every node takes whatever its options."""


@pytest.mark.parametrize("wire", LAYOUTS)
def test_records_reach_a_node_that_takes_smaller_messages_than_others_pack(
    produce: Produce, consume: Consume, store: Store, wire: str
) -> None:
    # 64 KiB of the smallest records, each of which has its length beside it.
    consumer = consume("t", max_record_bytes=SMALL_BYTES, wire=wire)
    producer = flushed(produce("t", wire=wire), values(20_000))
    records = iter(consumer)
    for start in ("live", "fetched"):
        assert [next(records).value for _ in range(20_000)] == values(20_000)
        if start == "live":
            consumer.seek(TopicPartition("t", producer.address), 0)


@pytest.mark.parametrize("wire", LAYOUTS)
def test_a_record_of_exactly_the_limit_passes_in_each_form(
    produce: Produce, consume: Consume, store: Store, wire: str
) -> None:
    limit: dict[str, Any] = {"max_record_bytes": LARGE_BYTES}
    consumer = consume("t", **limit)
    producer = produce("t", wire=wire, **limit)
    for form in ("live", "fetched"):
        if form == "live":
            flushed(producer, [bytes(LARGE_BYTES)])
        else:
            consumer.seek(TopicPartition("t", producer.address), 0)
        assert next(iter(consumer)).value == bytes(LARGE_BYTES)
    assert not consumer.mesh.peers.renewal_count


@pytest.mark.parametrize("apart", [False, True])
def test_a_connection_ended_by_an_oversized_message_is_renewed_and_logged(
    raw: Raw, produce: Produce, consume: Consume, caplog: pytest.LogCaptureFixture, apart: bool
) -> None:
    # A C node, which knows no limit, sends records larger than the node takes.
    peer = raw(subscription(Fetch))
    caplog.set_level(logging.WARNING, "dafka.mesh")
    if apart:
        own = produce("own", acks=2, max_record_bytes=SMALL_BYTES)
        peer.wait_until_subscribed(subscription(DirectRecord, own.address))
        mesh, to = own.mesh, own.address
        peer.send(DirectRecord(to, "own", to, 0, bytes(LARGE_BYTES)))
    else:
        consumer = consume("large", "small", max_record_bytes=SMALL_BYTES)
        mesh = consumer.mesh
        peer.wait_until_subscribed(subscription(RecordMessage, "large"))
        peer.wait_until_subscribed(subscription(Head, "small"))
        peer.send(RecordMessage("large", peer.address, 0, bytes(LARGE_BYTES)))
    wait_until(lambda: mesh.failure or caplog.records, "the connection to be made anew")
    assert mesh.failure is None
    line = caplog.records[0].getMessage()
    assert mesh.peers.renewal_count == 1
    assert f"connection to {peer.address}" in line
    assert f"above {max_frame_bytes(SMALL_BYTES)} bytes" in line
    assert f"max_record_bytes = {SMALL_BYTES}" in line
    if not apart:
        # Other topics continue. The peer sends again until its subscriber is back.
        def arrives() -> bool:
            peer.send(RecordMessage("small", peer.address, 0, b"here"))
            return consumer.poll(0.05) is not None

        wait_until(arrives, "a record over the new connection")


def test_the_end_of_a_new_peer_is_not_logged_as_a_failed_connection(
    raw: Raw, consume: Consume, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last beacons are still fresh when its connection should have lasted."""
    monkeypatch.setattr(peers, "UNREACHED_S", 1.0)
    peer = raw()
    consumer = consume("t", beacon_interval_ms=100, peer_expiry_ms=900)
    peer.wait_until_subscribed(subscription(RecordMessage, "t"))
    time.sleep(0.4)
    peer.close()
    table = consumer.mesh.peers.table
    wait_until(lambda: peer.address not in table.nodes(), "its end")
    assert peer.address not in caplog.text


def test_a_node_is_not_deaf_after_peers_went_that_it_was_connecting_to() -> None:
    """A connection's next attempt and its end meet at various moments."""
    with zmq.Context() as context, context.socket(zmq.PUB) as peer:
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        peer.unbind(f"tcp://127.0.0.1:{port}")
        for pause in range(50):
            socket = new_socket(context, zmq.SUB, SMALL_BYTES)
            socket.set(zmq.RECONNECT_IVL, 1)
            monitor = watched(context, socket)
            socket.connect(f"tcp://127.0.0.1:{port}")
            time.sleep(pause / 10_000)
            close_watched(socket, monitor)
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        socket = new_socket(context, zmq.SUB, SMALL_BYTES)
        monitor = watched(context, socket)
        socket.connect(f"tcp://127.0.0.1:{port}")
        assert monitor.poll(int(PATIENCE_S * 1000))
        close_watched(socket, monitor)


def test_without_an_open_file_a_connection_is_renewed_later_and_logged(
    raw: Raw, produce: Produce, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = raw(subscription(Fetch))
    own = produce("own", acks=2, beacon_interval_ms=100, max_record_bytes=SMALL_BYTES)
    mesh, to = own.mesh, own.address
    peer.wait_until_subscribed(subscription(DirectRecord, to))
    tried: list[int] = []

    def new_socket(*arguments: int) -> zmq.Socket[bytes]:
        tried.append(1)
        raise zmq.ZMQError(errno.EMFILE)

    with monkeypatch.context() as files:
        files.setattr(sockets, "new_socket", new_socket)
        peer.send(DirectRecord(to, "own", to, 0, bytes(LARGE_BYTES)))  # ZeroMQ gives the peer up
        wait_until(lambda: mesh.failure or len(tried) >= 2, "another try")
        wait_until(lambda: "files are open (ulimit -n)" in caplog.text)
        peer.subscribed.clear()
    peer.wait_until_subscribed(subscription(DirectRecord, to))
    assert mesh.failure is None
    assert caplog.text.count("files are open (ulimit -n)") == 1


def test_without_an_open_file_a_new_peer_is_connected_to_later(
    raw: Raw, produce: Produce, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = produce("own", acks=2, beacon_interval_ms=100).mesh

    def new_socket(endpoint: str) -> zmq.Socket[bytes]:
        raise zmq.ZMQError(errno.EMFILE)

    with monkeypatch.context() as files:
        files.setattr(mesh.peers, "_new_socket", new_socket)
        peer = raw(subscription(Fetch))
        wait_until(lambda: mesh.failure or "files are open (ulimit -n)" in caplog.text)
        assert len(mesh.peers.table) == 0
    peer.wait_until_subscribed(subscription(DirectRecord, mesh.role.address))
    assert mesh.traffic.refused["beacon"] == 0  # its beacons are valid


def test_a_node_whose_address_belongs_to_another_key_is_not_connected_to(
    raw: Raw, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = consume("t").mesh
    refused: set[str] = set()

    def check_node(node: str, key: str) -> None:
        refused.add(node)
        raise RefusedNodeError(node)

    monkeypatch.setattr(mesh.security, "check_node", check_node)
    peer = raw()
    wait_until(lambda: peer.address in refused, "the beacon of the peer")
    mesh.call(lambda now: None)  # the round that received it has ended
    assert len(mesh.peers.table) == 0


def test_events_of_an_ended_connection_do_not_concern_the_next_one(consume: Consume) -> None:
    mesh, endpoint = consume("t").mesh, "tcp://localhost:1"

    def receive(now: float) -> bool:
        beacon = TowerBeacon("B" * 32, endpoint)
        assert mesh.peers.table.hear(now, beacon)
        mesh.peers._add(now, beacon)
        for event in (zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_DISCONNECTED):
            mesh.peers._receive_event(now, event, 0, endpoint)
        return endpoint in mesh.peers._doubtful

    assert not mesh.call(receive)
    mesh.call(lambda now: None)  # it has connected meanwhile
    assert endpoint not in mesh.peers._new


def test_a_node_is_never_connected_to_itself(
    raw: Raw, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    """As two containers on different machines, which have one address and one port."""
    producer, peer = produce("t"), raw()
    mesh = producer.mesh
    place = mesh.peers.inbound.endpoint

    def is_announced() -> bool:
        own = mesh.beacon._replace(node=peer.address)
        peer.send_beacon(encode_node_beacon(own._replace(kind="S")))
        return [b"B", peer.address.encode(), place.encode()] in peer.beacons

    wait_until(is_announced)
    producer.publish(b"on no disk")
    with pytest.raises(NotAcknowledgedError):
        producer.flush(2)  # some FETCHes of its last record
    assert place not in mesh.peers.table
    assert f"no connection to node {peer.address}, at this node's own endpoint" in caplog.text


def test_a_message_of_too_many_frames_from_a_peer_with_a_name_is_skipped(
    raw: Raw, consume: Consume
) -> None:
    """Its connection is attempted by the other family while the rest is skipped."""
    consumer, peer = consume("t"), raw(host="localhost")
    prefix = subscription(RecordMessage, "t")
    peer.wait_until_subscribed(prefix)
    peer.subscribed.clear()
    peer.send_frames([b"Mt", *[b""] * 300_000])
    peer.wait_until_subscribed(prefix)
    peer.send(RecordMessage("t", peer.address, 0, b"next"))
    assert next(iter(consumer)).value == b"next"


def test_no_quota_counts_what_a_node_leaves_unread(produce: Produce) -> None:
    mesh = produce("t").mesh
    assert not mesh.quotas.is_paused
    for receiving in (False, True):
        mesh.call(lambda now: mesh.set_receiving(receiving))  # noqa: B023
        assert mesh.quotas.is_paused is not receiving


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "dafka.mesh")

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_a_peer_that_does_not_connect_is_logged(
    raw: Raw,
    consume: Consume,
    said: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "UNREACHED_S", 0.3)
    peer = raw()  # it never announces itself
    consumer = consume("t", beacon_interval_ms=50)
    mesh = consumer.mesh
    peer.wait_until_subscribed(subscription(RecordMessage, "t"))
    wait_until(lambda: caplog.records, "the node to say it")
    [line] = said()
    [(_, endpoint)] = mesh.peers.table.addresses()
    start = f"1 of 1 peers, as {peer.address} at {endpoint}, have not connected to this node at "
    assert line.startswith(start + mesh.peers.inbound.endpoint)
    time.sleep(0.2)  # some beacons later
    assert said() == []
    mesh.peers.inbound.apply(None, True, DirectRecord, peer.address)
    assert mesh.peers.inbound.unconnected([peer.address, "B" * 32]) == ["B" * 32]
    assert mesh.failure is None


def test_a_tower_that_receives_nothing_is_logged(
    tower: str,
    said: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A firewall passes one of its two ports."""
    monkeypatch.setattr(peers, "UNREACHED_S", 0.3)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        sub, pub = closed.getsockname()[1], tower.split(":")[2]
        with Reader(tower=f"127.0.0.1:{sub}:{pub}", beacon_interval_ms=50):
            wait_until(lambda: caplog.records)
            [line] = said()
    assert line.startswith("no tower returns the beacons of this node")
    assert f"(127.0.0.1:{sub})" in line


def test_a_store_that_cannot_connect_is_named(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound_elsewhere(*where: Any) -> tuple[str, int]:
        return "127.0.0.9", addresses.bound(*where)[1]  # where no process listens

    with (
        Tower(**ANY_PORTS) as tower,
        Store(str(tmp_path), tower=tower.tower) as store,
        monkeypatch.context() as patched,
    ):
        patched.setattr(mesh, "bound", bound_elsewhere)
        with Reader(tower=tower.tower) as reader:
            with pytest.raises(NoStoreError, match="cannot connect to this node at") as failed:
                reader.partitions(timeout_s=2)
            assert failed.value.unconnected == (store.address,)
            assert failed.value.endpoint == reader.mesh.peers.inbound.endpoint
            assert reader.endpoints() == {store.address: store.locations}
