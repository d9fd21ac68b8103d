"""Where a node can be reached."""

from __future__ import annotations

import re

import pytest

from dafka_core import Producer, Store, Tower
from dafka_core.node_options import NodeOptions
from dafka_core.nodes.addresses import new_address, own_host
from tests.integration.nodes.peers import ANY_PORTS


def test_addresses_look_like_those_of_c_nodes() -> None:
    assert re.fullmatch(r"[0-9A-F]{32}", new_address())
    assert new_address() != new_address()


@pytest.mark.parametrize(
    ("tower", "host", "own"),
    [
        ("127.0.0.1", "auto", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.2", "127.0.0.2"),
    ],
)
def test_auto_takes_the_address_that_reaches_the_tower(tower: str, host: str, own: str) -> None:
    assert own_host(NodeOptions.build({"tower": f"{tower}:5556:5557", "host": host})) == own


def test_a_node_announces_the_address_it_found(tmp_path: object) -> None:
    with (
        Tower(**ANY_PORTS) as tower,
        Store(str(tmp_path), tower=tower.tower, host="auto"),
        Producer("t", tower=tower.tower, host="auto") as producer,
    ):
        producer.publish(b"reached")
        producer.flush(30)
