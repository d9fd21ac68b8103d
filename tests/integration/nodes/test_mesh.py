"""What all nodes share: finding towers and each other, and being refused what cannot be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import (
    ConfigError,
    Consumer,
    Producer,
    Reader,
    Store,
    Tower,
    TowerNotFoundError,
)
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectHead
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer

NODES: dict[str, Callable[..., Any]] = {
    "producer": lambda directory, **options: Producer("t", **options),
    "consumer": lambda directory, **options: Consumer(**options),
    "reader": lambda directory, **options: Reader(**options),
    "store": Store,
}

each_node = pytest.mark.parametrize("kind", NODES)


@pytest.fixture
def silence() -> str:
    """Where no tower is: ports that were free a moment ago."""
    with Tower(**ANY_PORTS) as gone:
        return gone.tower


@each_node
def test_no_tower_is_an_error_in_time(kind: str, silence: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(TowerNotFoundError, match=f"no tower answered at {silence}") as refused:
        NODES[kind](tmp_path, tower=silence, tower_timeout_s=0.2)
    assert refused.value.towers == (silence,)
    assert refused.value.waited_s == 0.2
    assert 0.2 <= time.monotonic() - begun < PATIENCE_S
    # Whatever it had opened is closed: the store's directory may be used again.
    with pytest.raises(TowerNotFoundError):
        NODES[kind](tmp_path, tower=silence, tower_timeout_s=0.01)


@each_node
def test_a_node_asked_to_wait_for_its_tower_waits(kind: str, silence: str, tmp_path: Path) -> None:
    made: list[Any] = []

    def make() -> None:
        made.append(NODES[kind](tmp_path, tower=silence, tower_timeout_s=0.01, wait_for_tower=True))

    maker = threading.Thread(target=make)
    maker.start()
    maker.join(0.1)
    assert maker.is_alive()
    _, sub_port, pub_port = silence.split(":")
    with Tower(
        sub_address=f"tcp://127.0.0.1:{sub_port}", pub_address=f"tcp://127.0.0.1:{pub_port}"
    ):
        maker.join(PATIENCE_S)
        made[0].__exit__(None, None, None)


@each_node
@pytest.mark.usefixtures("no_spark")
def test_the_environment_names_the_tower(
    kind: str, tower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAFKA_TOWER", tower)
    with NODES[kind](tmp_path):
        pass


@each_node
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("towr", "127.0.0.1", "did you mean 'tower'"),
        ("tower", "127.0.0.1:1", "must be HOST"),
        ("tower", "", "must be HOST"),
        ("tower", [], "at least one tower"),
        ("host", "no.such.host.invalid", "must be an address of this machine"),
        ("host", "192.0.2.1", "must be an address of this machine"),
        ("wire", "rfc47", "must be one of"),
        ("beacon_interval_ms", "soon", "whole number"),
        ("peer_expiry_ms", 1, "at least 100"),
    ],
)
def test_options_that_cannot_be_are_refused(
    kind: str, option: str, value: Any, says: str, tower: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        NODES[kind](tmp_path, **{"tower": tower} | {option: value})
    assert refused.value.option == option


def test_nodes_meet_through_any_of_several_towers(
    tmp_path: Path, open_nodes: ExitStack, silence: str
) -> None:
    towers = [open_nodes.enter_context(Tower(**ANY_PORTS)).tower for _ in range(2)]
    store = Store(tmp_path, tower=[towers[1], silence])
    open_nodes.enter_context(store)
    with Producer("t", tower=",".join(towers)) as producer:
        producer.publish(b"0")
        producer.flush(PATIENCE_S)
    with Consumer(tower=towers, start="earliest") as consumer:
        consumer.subscribe("t")
        record = consumer.poll(PATIENCE_S)
    assert record is not None
    assert record.value == b"0"


def test_a_new_node_is_answered_at_once(tower: str, tmp_path: Path) -> None:
    # With beacons this rare they meet only because each answers the other's first one.
    rare: dict[str, Any] = {"tower": tower, "beacon_interval_ms": 600_000}
    with Store(tmp_path, **rare), Producer("t", **rare) as producer:
        producer.publish(b"0")
        producer.flush(PATIENCE_S)


def test_silent_peers_are_given_up_and_found_again(tower: str, raw: Callable[..., RawPeer]) -> None:
    with Consumer(tower=tower, beacon_interval_ms=50, peer_expiry_ms=200) as consumer:
        for _ in range(2):
            peer = raw()
            peer.wait_until_subscribed(subscription(DirectHead, consumer.address))
            peer.close()
            wait_until(lambda: not len(consumer._mesh.peers.table))
