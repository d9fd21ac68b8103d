"""Addresses that nodes of several machines announce, and by which they connect."""

from __future__ import annotations

from pathlib import Path

from dafka_core.testing import wait_until
from tests.chaos.nodes import Node
from tests.integration.machines.conftest import FIRST, SECOND, Machines

ANYWHERE = ("--sub-address", "tcp://*:0", "--pub-address", "tcp://*:0")


def ports_of(tower: str) -> str:
    return tower.partition(":")[2]


def refused(node: Node) -> str:
    """Return the error of a node that cannot start."""
    assert node.end() == 2
    return node.said


def test_a_loopback_host_with_a_tower_elsewhere_is_refused(
    separate: Machines, tmp_path: Path
) -> None:
    said = refused(separate.start(SECOND, "store", "--dir", str(tmp_path / "d"), host="127.0.0.1"))
    assert "nodes on the machine of tower" in said
    assert "set it to 10.77.0.2" in said


def test_a_loopback_address_of_the_hosts_file_is_refused(
    separate: Machines, tmp_path: Path
) -> None:
    separate.hosts(FIRST, "127.0.1.1 machine0")
    tower = f"machine0:{ports_of(separate.tower(FIRST))}"
    at = ("--dir", str(tmp_path / "d"))
    said = refused(separate.start(FIRST, "store", *at, host="auto", tower=tower))
    assert "tower machine0 is 127.0.1.1 on this machine, by its /etc/hosts" in said
    separate.hosts(SECOND, "127.0.1.1 machine1")
    said = refused(separate.start(SECOND, "store", *at, host="machine1"))
    assert "machine1 is 127.0.1.1" in said


def test_unreachable_towers_are_skipped(separate: Machines, tmp_path: Path) -> None:
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


def test_a_node_takes_the_next_free_port_of_its_range(separate: Machines, tmp_path: Path) -> None:
    for number in (0, 1):
        at = ("--dir", str(tmp_path / f"d{number}"), "--port", "20000-20001")
        separate.start(SECOND, "store", *at).ready()
    said = refused(separate.start(SECOND, "store", "--dir", str(tmp_path / "e"), "--port", "20000"))
    assert "option 'port' = '20000': is in use at 10.77.0.2" in said


def test_a_loopback_host_beside_peers_on_other_machines_is_logged(
    separate: Machines, tmp_path: Path
) -> None:
    ports = separate.start(FIRST, "tower", *ANYWHERE).ready()
    at = f"{ports['sub_port']}:{ports['pub_port']}"
    store = separate.start(SECOND, "store", "--dir", str(tmp_path / "d"), tower=f"10.77.0.1:{at}")
    store.ready()
    # As Spark's driver on that machine, also with host auto.
    node = separate.start(FIRST, "consume", "t", host="auto", tower=f"127.0.0.1:{at}")
    wait_until(lambda: "in the network instead of 127.0.0.1" in node.said)


def test_a_tower_that_moves_to_another_address_is_found_by_its_name(
    separate: Machines, tmp_path: Path
) -> None:
    tower = separate.start(FIRST, "tower", *ANYWHERE)
    ports = tower.ready()
    at = f"tower:{ports['sub_port']}:{ports['pub_port']}"
    separate.hosts(SECOND, "10.77.0.1 tower")
    store = separate.start(SECOND, "store", "--dir", str(tmp_path / "d"), host="auto", tower=at)
    store.ready()
    # The tower's machine is lost, and a new machine gets its name.
    separate.command(FIRST, "ip link set cable0 down")
    separate.hosts(SECOND, "10.77.0.2 tower")
    addresses = (f"tcp://*:{ports[name]}" for name in ("sub_port", "pub_port"))
    options = zip(("--sub-address", "--pub-address"), addresses, strict=True)
    separate.start(SECOND, "tower", *(word for pair in options for word in pair)).ready()
    topics = separate.start(SECOND, "topics", "--timeout-s", "60", host="auto", tower=at)
    assert topics.end() == 0
