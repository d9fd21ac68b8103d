"""Towers that end and return, and those that refuse a node."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.config.node_options import NodeOptions, TowerAddress
from dafka_core.nodes import tower_links
from dafka_core.nodes.security import Security
from dafka_core.nodes.tower_links import AWAY_S, REFUSED_S, Towers
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import NodeBeacon
from dafka_core.testing import wait_until
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S
from tests.open_files import no_open_file_left


def address(tower: Tower) -> TowerAddress:
    return TowerAddress(tower.host, tower.sub_port, tower.pub_port)


def restarted(tower: Tower) -> Tower:
    """Return a new tower at the ports of a closed one."""
    return Tower(
        sub_address=f"tcp://127.0.0.1:{tower.sub_port}",
        pub_address=f"tcp://127.0.0.1:{tower.pub_port}",
    )


def test_a_silent_tower_is_connected_to_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_links, "AWAY_S", 0.3)
    first = Tower(**ANY_PORTS)
    with Reader(tower=first.tower, beacon_interval_ms=50) as reader:
        links = reader.mesh.peers.towers._links
        before = links[address(first)]
        first.close()
        wait_until(lambda: links[address(first)] is not before)
        with restarted(first):
            wait_until(lambda: links[address(first)].received_at > before.received_at)
            assert reader.mesh.failure is None


@pytest.mark.parametrize("is_trusted", [True, False])
def test_without_an_open_file_left_a_link_is_kept_unless_its_tower_is_not_trusted_any_more(
    monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    with zmq.Context() as context, Tower(**ANY_PORTS) as tower:
        config = NodeOptions.build({"tower": tower.tower})
        security = Security(config, context)
        own = NodeBeacon("A" * 32, "127.0.0.1", 7)
        made = Towers(own, config, context, zmq.Poller(), security)
        before = made._links[config.tower[0]]
        made.send(1.0)
        monkeypatch.setattr(security, "is_tower", lambda key: is_trusted)
        with no_open_file_left():
            made.send(2.0 + AWAY_S)
        assert made.known == [*config.tower]
        assert made._links[config.tower[0]] is before
        assert before.pub.closed is not is_trusted
        made.send(3.0 + AWAY_S)
        after = made._links[config.tower[0]]
        assert after is not before
        assert before.pub.closed
        made._close(after)


def test_a_refusal_is_logged_once_while_the_node_retries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(tmp_path / "keys")
    with zmq.Context() as context, Tower(**ANY_PORTS, **keys.of("tower")) as tower:
        config, poller = NodeOptions.build({"tower": tower.tower}), zmq.Poller()
        own = NodeBeacon("A" * 32, "127.0.0.1", 7)
        made = Towers(own, config, context, poller, Security(config, context))
        refused: list[object] = []  # connections

        def is_refused_again() -> bool:
            now = REFUSED_S * (1 + len(refused))
            made.send(now)
            assert not list(made.receive(now, dict(poller.poll(100))))
            link = made._links[config.tower[0]]
            if link.has_failed and (not refused or refused[-1] is not link):
                refused.append(link)
            return len(refused) == 3

        wait_until(is_refused_again)
        assert "set secret_key_file and allowed_keys" in made.refusals[tower.tower]
        assert caplog.text.count("does not let this node in") == 1
        made._close(made._links[config.tower[0]])


def test_nodes_whose_towers_do_not_know_each_other_meet_at_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer and a consumer have different towers, and the store has both."""
    monkeypatch.setattr(timing, "HEADS_INTERVAL_S", 0.2)  # how often it asks the store
    with (
        Tower(**ANY_PORTS) as one,
        Tower(**ANY_PORTS) as other,
        Store(tmp_path, tower=f"{one.tower},{other.tower}") as store,
        Consumer(tower=other.tower, start="earliest") as consumer,
        Producer("t", tower=one.tower, head_interval_ms=100) as producer,
    ):
        consumer.subscribe("t")
        producer.publish_many(values(500))
        producer.flush(PATIENCE_S)
        assert stored(store, "t", producer.address) == values(500)
        records = [consumer.poll(PATIENCE_S) for _ in range(500)]
        assert [record and record.value for record in records] == values(500)
        producer.publish(b"later")
        last = consumer.poll(PATIENCE_S)
        assert last is not None
        assert last.value == b"later"
