"""Peers and towers that send anything: it is counted and dropped, and valid traffic continues."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import zmq

from dafka_core import Consumer, Producer, Store
from dafka_core.protocol.beacons import TowerBeacon, encode_tower_beacon
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    ConsumerHello,
    RecordBatchMessage,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.content import polled
from tests.integration.nodes.peers import RawPeer

ENDPOINTS = [
    b"tcp://-:1",
    b"tcp://.:1",
    b"tcp://_:1",
    b"tcp://[::]:1",
    b"tcp://[%a]:1",
    b"tcp://[]:1",
    b"tcp://*:1",
    b"tcp://1.2.3.4.5.6:1",
    b"tcp://a..b:1",
    b"tcp://127.0.0.1:99999",
    b"tcp://127.0.0.1:0",
    b"tcp://127.0.0.1;127.0.0.1:1",
    b"ipc:///tmp/x",
    b"inproc://x",
    b"",
    b"\xff",
]


@pytest.mark.parametrize("acks", [1, 2], ids=["one socket for all peers", "one for each"])
def test_endpoints_that_cannot_be(tower: str, open_nodes: ExitStack, acks: int) -> None:
    # Towers pass no such beacon on, so this is one that does.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    open_nodes.callback(context.term)
    hears = open_nodes.enter_context(context.socket(zmq.SUB))
    hears.subscribe(b"B")
    says = open_nodes.enter_context(context.socket(zmq.XPUB))
    says.set(zmq.LINGER, 0)
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (hears, says)]
    both = f"{tower},127.0.0.1:{ports[0]}:{ports[1]}"
    with Producer("t", tower=both, acks=acks, close_timeout_s=0) as producer:
        subscribed: set[bytes] = set()

        def is_heard() -> bool:
            hears.poll(0)  # has ZeroMQ send the subscription
            while says.poll(0):
                subscribed.add(says.recv())
            return {b"\1B", b"\1W"} <= subscribed

        wait_until(is_heard)
        for endpoint in ENDPOINTS:
            says.send_multipart([b"B", b"A" * 32, endpoint])
        for frames in ([b"B"], [b"W", b"more"], [b"B", b"", b""], [b"B"] * 5, [b"Bx", b""]):
            says.send_multipart(frames)
        says.send_multipart(encode_tower_beacon(TowerBeacon("LAST", "tcp://127.0.0.1:9")))
        wait_until(lambda: producer.mesh.peers.table.knows("LAST"))
        assert producer.publish_many([]) == 0  # its loop still runs
        refused = producer.mesh.traffic.refused
        assert refused["beacon"] >= 14


def test_garbage_is_counted_and_nodes_continue(
    tower: str, store: Store, consume: Callable[..., Consumer], raw: Callable[..., RawPeer]
) -> None:
    """Sent to the tower, and to a store and a consumer; the simulator has every kind of it."""
    consumer, hostile = consume("t"), raw()
    hostile.wait_until_subscribed(subscription(ConsumerHello, store.address))
    hostile.wait_until_subscribed(subscription(RecordBatchMessage, "t"))
    chance = random.Random(46)
    for size in range(200):
        frames = [chance.randbytes(chance.randrange(40)) for _ in range(1 + size % 6)]
        hostile.send_beacon([b"B" + frames[0], *frames[1:]])
        hostile.send_beacon([b"B", *frames[1:]])
        # With more frames the nodes would end the connection, whatever the frames are.
        hostile.send_frames([b"Mt" + frames[0], *frames[1:3]])
    meshes = consumer.mesh, store.mesh
    wait_until(lambda: all(sum(mesh.traffic.refused.values()) >= 50 for mesh in meshes))
    wait_until(lambda: consumer.mesh.traffic.refused["records"] > 0)
    with Producer("t", tower=tower) as producer:
        producer.publish(b"valid")
    wait_until(lambda: polled(consumer) == ("t", producer.address, 0, b"valid"))
