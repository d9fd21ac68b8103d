"""Connections through towers that announce no kinds, by the letter of RFC 46, and many of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.config.node_options import ALL_NODES
from dafka_core.errors import ProtocolError
from dafka_core.protocol.beacons import (
    WELCOME,
    TowerBeacon,
    decode_node_beacon,
    encode_tower_beacon,
    endpoint_of,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import ANY_PORTS

FAST: dict[str, Any] = {"beacon_interval_ms": 50}


def peers_of(node: Producer | Consumer | Store | Reader) -> set[str]:
    """The addresses of the nodes that a node connects to."""
    return {peer for peer, _ in node.mesh.peers.table.addresses()}


class CTower:
    """It passes on all subscriptions, and beacons without a kind, as the C tower does."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._xsub, self._xpub = (self._context.socket(each) for each in (zmq.XSUB, zmq.XPUB))
        self._xpub.set(zmq.XPUB_WELCOME_MSG, WELCOME)
        both = (self._xsub, self._xpub)
        sub, pub = (each.bind_to_random_port("tcp://127.0.0.1") for each in both)
        self.tower = f"127.0.0.1:{sub}:{pub}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._ended.wait(0.001):
            with suppress(zmq.Again):
                while True:
                    subscription = self._xpub.recv(zmq.NOBLOCK)
                    if subscription[1:2] != WELCOME:
                        self._xsub.send(subscription)
            with suppress(zmq.Again, ProtocolError):
                while True:
                    beacon = decode_node_beacon(self._xsub.recv_multipart(zmq.NOBLOCK))
                    told = TowerBeacon(beacon.node, endpoint_of(beacon, "127.0.0.1"))
                    self._xpub.send_multipart(encode_tower_beacon(told))


@pytest.fixture
def c_tower() -> Iterator[str]:
    made = CTower()
    yield made.tower
    made.close()


class Cluster:
    """Two nodes of each kind."""

    def __init__(self, nodes: ExitStack, directory: Path, tower: str, **options: Any) -> None:
        options = {"tower": tower, **FAST, **options}
        self.producers = [nodes.enter_context(Producer("t", **options)) for _ in range(2)]
        self.consumers = [nodes.enter_context(Consumer(**options)) for _ in range(2)]
        self.readers = [nodes.enter_context(Reader(**options)) for _ in range(2)]
        # They are late: all others have to find them.
        self.stores = [
            nodes.enter_context(Store(directory / str(each), **options)) for each in range(2)
        ]

    @property
    def nodes(self) -> list[Any]:
        return [*self.producers, *self.consumers, *self.readers, *self.stores]

    def wait_for(self, needed: Callable[[Any], list[Any]], *others: str) -> None:
        """Waits until each node connects to exactly the nodes that it needs."""
        for node in self.nodes:
            addresses = {each.address for each in needed(node)} - {node.address} | {*others}
            wait_until(lambda: peers_of(node) == addresses, f"the peers of {node}")  # noqa: B023


def test_by_the_letter_of_rfc_46_all_nodes_connect_to_each_other(
    tower: str, open_nodes: ExitStack, tmp_path: Path
) -> None:
    cluster = Cluster(open_nodes, tmp_path, tower, connect_to=ALL_NODES)
    cluster.wait_for(lambda node: cluster.nodes)
    # One that does not follow it is a peer of those that do.
    other = open_nodes.enter_context(Producer("t", tower=tower, **FAST))
    wait_until(lambda: peers_of(other) == {each.address for each in cluster.nodes})
    cluster.wait_for(lambda node: [*cluster.nodes, other])


def test_all_connect_to_each_other_through_a_c_tower(
    c_tower: str, open_nodes: ExitStack, tmp_path: Path
) -> None:
    cluster = Cluster(open_nodes, tmp_path, c_tower)
    cluster.wait_for(lambda node: cluster.nodes)


def test_a_tower_of_another_kind_at_the_same_ports_is_noticed(open_nodes: ExitStack) -> None:
    before = CTower()
    producers = [
        open_nodes.enter_context(Producer("t", tower=before.tower, peer_expiry_ms=500, **FAST))
        for _ in range(2)
    ]
    wait_until(lambda: all(map(peers_of, producers)))
    before.close()
    _, sub, pub = before.tower.split(":")
    at = {"sub_address": f"tcp://127.0.0.1:{sub}", "pub_address": f"tcp://127.0.0.1:{pub}"}
    with Tower(**at):
        wait_until(lambda: not any(map(peers_of, producers)), "kinds to be announced")


def test_many_producers_come_up_in_a_process_with_a_low_soft_limit() -> None:
    code = (
        "import contextlib, resource\n"
        "from dafka_core import Producer\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))\n"
        "with contextlib.ExitStack() as stack:\n"
        "    import sys\n"
        "    for _ in range(80):\n"
        "        stack.enter_context(Producer('t', tower=sys.argv[1], tower_timeout_s=60))\n"
        "    print('up', flush=True)\n"
    )
    with Tower(**ANY_PORTS) as tower:
        shown = subprocess.run(
            [sys.executable, "-c", code, tower.tower], capture_output=True, text=True, check=False
        )
    assert shown.stdout == "up\n", shown.stderr[-2_000:]
