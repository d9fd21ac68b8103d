"""Where nodes of several machines say that they are, and find each other."""

from __future__ import annotations

from pathlib import Path

from dafka_core.testing import wait_until
from tests.chaos.nodes import Node
from tests.integration.machines.conftest import FIRST, SECOND, Machines

ANYWHERE = ("--sub-address", "tcp://*:0", "--pub-address", "tcp://*:0")


def ports_of(tower: str) -> str:
    return tower.partition(":")[2]


def refused(node: Node) -> str:
    """What a node that was asked for what cannot be done has said."""
    assert node.end() == 2
    return node.said


def test_a_loopback_host_with_a_tower_elsewhere_is_refused(
    separate: Machines, tmp_path: Path
) -> None:
    said = refused(separate.start(SECOND, "store", "--dir", str(tmp_path / "d"), host="127.0.0.1"))
    assert "is on another machine, whose nodes cannot connect to this one" in said
    assert "set it to 10.77.0.2" in said


def test_debians_name_for_the_machine_itself_is_refused(separate: Machines, tmp_path: Path) -> None:
    separate.hosts(FIRST, "127.0.1.1 machine0")
    tower = f"machine0:{ports_of(separate.tower(FIRST))}"
    at = ("--dir", str(tmp_path / "d"))
    said = refused(separate.start(FIRST, "store", *at, host="auto", tower=tower))
    assert "tower machine0 is 127.0.1.1 on this machine, by its /etc/hosts" in said
    separate.hosts(SECOND, "127.0.1.1 machine1")
    said = refused(separate.start(SECOND, "store", *at, host="machine1"))
    assert "machine1 is 127.0.1.1" in said


def test_the_second_tower_is_taken(separate: Machines, tmp_path: Path) -> None:
    towers = f"nosuch:1:2,10.77.0.9:1:2,{separate.tower(SECOND)}"
    at = ("--dir", str(tmp_path / "d"))
    store = separate.start(SECOND, "store", *at, host="auto", tower=towers)
    assert store.ready()["flight"][0].startswith("grpc")
    assert "a tower cannot be reached now (nosuch:" in store.said


def test_a_node_waits_at_boot_for_the_network_and_for_names(
    separate: Machines, tmp_path: Path
) -> None:
    separate.command(SECOND, "ip link set cable1 down")
    tower = f"tower:{ports_of(separate.tower(FIRST))}"
    waits = ("--dir", str(tmp_path / "d"), "--wait-for-tower")
    node = separate.start(SECOND, "store", *waits, host="auto", tower=tower)
    wait_until(lambda: "this node waits until that has changed" in node.said)
    separate.command(SECOND, "ip link set cable1 up")
    separate.hosts(SECOND, "10.77.0.1 tower")
    assert "grpc://10.77.0.2:" in str(node.ready())


def test_a_port_of_ones_own_is_taken_and_the_next_one(separate: Machines, tmp_path: Path) -> None:
    for number in (0, 1):
        at = ("--dir", str(tmp_path / f"d{number}"), "--port", "20000-20001")
        separate.start(SECOND, "store", *at).ready()
    said = refused(separate.start(SECOND, "store", "--dir", str(tmp_path / "e"), "--port", "20000"))
    assert "option 'port' = '20000': is in use at 10.77.0.2" in said
