"""Peers that do not connect to a node: it says so, and where they were told to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from dafka_core import Consumer, NoStoreError, Reader, Store, Tower
from dafka_core.nodes import addresses, mesh, peers
from dafka_core.nodes.inbound import Inbound
from dafka_core.protocol.beacons import NodeBeacon, PeerTable, TowerBeacon
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import RecordMessage
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import ANY_PORTS, RawPeer

ME, PEER, OTHER = "A" * 32, "B" * 32, "C" * 32


def table_with(*nodes: str) -> PeerTable:
    table = PeerTable(ME, 7_000, expiry_s=4)
    for port, node in enumerate(nodes):
        table.hear(0.0, TowerBeacon(node, f"tcp://10.0.0.9:{port}"))
    return table


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "dafka.mesh")

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_who_has_not_connected_is_said_and_seldom_again(said: Callable[[], list[str]]) -> None:
    inbound = Inbound(NodeBeacon(ME, "10.0.0.1", 7_000), table_with(PEER, OTHER))
    inbound.report(0.0)
    assert said() == []
    for port in (0, 1):
        inbound.expect(f"tcp://10.0.0.9:{port}")
    inbound.note(OTHER)
    inbound.report(10.0)
    [line] = said()
    assert "1 of 2 peers have not connected to this node at tcp://10.0.0.1:7000" in line
    assert f"as {PEER} at tcp://10.0.0.9:0" in line
    times = []
    for now in range(11, 100):
        inbound.report(float(now))
        times += [now] * len(said())
    assert times == [20, 40, 80]
    assert inbound.unmet([PEER, OTHER]) == [PEER]
    inbound.note(PEER)
    inbound.report(1_000.0)
    inbound.forget("tcp://10.0.0.9:0")
    assert (said(), inbound.unmet([PEER, OTHER])) == ([], [])


def test_a_loopback_host_among_other_machines_is_said_at_once(
    said: Callable[[], list[str]],
) -> None:
    table = table_with(PEER)
    own = addresses.network_host()
    inbound = Inbound(NodeBeacon(ME, "127.0.0.1", 7_000), table)
    for host in ("127.0.0.1", "localhost", own):
        inbound.hear(f"tcp://{host}:1")
    assert said() == []
    for _ in range(2):
        inbound.hear("tcp://192.0.2.9:1")
    [line] = said()
    assert "this node is at tcp://127.0.0.1:7000, where tcp://192.0.2.9:1 on another" in line
    Inbound(NodeBeacon(ME, "10.0.0.1", 7_000), table).hear("tcp://192.0.2.9:1")
    assert said() == []


def test_a_peer_that_does_not_connect_is_said(
    raw: Callable[..., RawPeer],
    consume: Callable[..., Consumer],
    said: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "UNREACHED_S", 0.3)
    peer = raw()  # it never says who it is
    consumer = consume("t", beacon_interval_ms=50)
    peer.wait_until_subscribed(subscription(RecordMessage, "t"))
    wait_until(lambda: caplog.records, "the node to say it")
    [line, *_] = said()
    assert "1 of 1 peers have not connected" in line
    assert f"{peer.address} at" in line
    assert consumer._mesh.failure is None


def test_a_store_that_cannot_connect_is_named(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound_elsewhere(*where: Any) -> tuple[str, int]:
        return "127.0.0.9", addresses.bound(*where)[1]  # where nobody listens

    with (
        Tower(**ANY_PORTS) as tower,
        Store(str(tmp_path), tower=tower.tower) as store,
        monkeypatch.context() as patched,
    ):
        patched.setattr(mesh, "bound", bound_elsewhere)
        with Reader(tower=tower.tower) as reader:
            with pytest.raises(NoStoreError, match="cannot connect to this node at") as failed:
                reader.partitions(timeout_s=2)
            assert failed.value.unmet == (store.address,)
            assert failed.value.endpoint == reader._mesh.peers.inbound.endpoint
            assert reader.endpoints() == {store.address: store.locations}
