"""Nodes on machines with only IPv6, and names with addresses of one or both families."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dafka_core.testing import wait_until
from tests.chaos.networks import Process, unshare_works
from tests.chaos.nodes import Node, environment
from tests.integration.machines.conftest import FIRST, SECOND, Machines

LINK = "fe80::7%cable"
IPV6_ONLY = (
    "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && "
    "ip link add cable type veth peer name far && ip link set far up && ip link set cable up && "
    "ip addr add fe80::7/64 dev cable nodad && ip addr add fd00::7/64 dev cable nodad && "
    "ip route add default via fe80::1 dev cable"
)
BOTH_FAMILIES = "ip link set lo up"
NAMES = "127.0.0.1 localhost both four\n::1 localhost both six\n"


class Machine:
    """A machine with its own network, which a shell script sets up, and its own hosts file."""

    def __init__(self, stack: contextlib.ExitStack, directory: Path, script: str) -> None:
        self._stack, self._directory = stack, directory
        hosts = directory / "hosts"
        hosts.write_text(NAMES)
        setup = f"{script} && mount --bind {hosts} /etc/hosts"
        pid = Process(stack, ["unshare", "-rnm"], setup).pid
        enter = ("nsenter", "-t", str(pid), "-U", "-n", "-m", "--preserve-credentials")
        self._enter: Sequence[str] = enter

    def start(self, kind: str, *arguments: str) -> Node:
        log = self._directory / f"{kind}.log"
        return self._stack.enter_context(Node(kind, arguments, log, self._enter))

    def start_tower(self, host: str) -> str:
        """Start a tower that listens at a host; return its address."""
        at = ("--sub-address", f"tcp://{host}:0", "--pub-address", f"tcp://{host}:0")
        return str(self.start("tower", *at, "--insecure").ready()["tower"])

    def start_store(self, tower: str, host: str, *arguments: str) -> dict[str, object]:
        directory = str(self._directory / "store")
        at = ("--dir", directory, "--tower", tower, "--host", host, "--insecure")
        return self.start("store", *at, *arguments).ready()

    def run(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._enter, sys.executable, "-m", "dafka_core.cli", *arguments],
            input=given,
            capture_output=True,
            env=environment(),
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def check(self, tower: str, host: str) -> None:
        """Write and read a record, and run the checks."""
        at = ("--tower", tower, "--host", host, "--insecure")
        self.run("produce", "t", *at, given="one\n")
        assert self.run("consume", "t", "--from-beginning", "--count", "1", *at) == "one\n"
        self.run("status", *at)
        assert "store" in self.run("doctor", *at)


Make = Callable[[str], Machine]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def make(script: str) -> Machine:
            if not unshare_works("-rnm", script):
                pytest.skip(
                    "needs network namespaces with IPv6: install iproute2 and util-linux, and set "
                    "the sysctls net.ipv6.conf.all.disable_ipv6=0 and "
                    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu) or "
                    "kernel.unprivileged_userns_clone=1 (Debian)"
                )
            return Machine(stack, tmp_path, script)

        yield make


def port_of(tower: str) -> str:
    return tower.rpartition("]:")[2] if "]" in tower else tower.partition(":")[2]


def test_a_machine_without_ipv4_runs_a_cluster(machine: Make) -> None:
    only = machine(IPV6_ONLY)
    tower = only.start_tower("*")
    assert tower.startswith("[fd00::7]:")
    store = only.start_store(tower, "auto", "--kafka", "[::1]:0", "--metrics", "[::1]:0")
    assert str(store["kafka"]).startswith("[::1]:")
    assert any(str(each).startswith("grpc://[fd00::7]:") for each in store["flight"])  # type: ignore[attr-defined]
    only.check(tower, "auto")
    only.check(tower, "[fd00::7]")
    only.run("topics", "--stores", str(store["flight"][-1]))  # type: ignore[index]
    console = only.start("console", "--listen", "[::1]:0", "--tower", tower, "--host", "auto")
    assert str(console.ready()["url"]).startswith("http://[::1]:")


def test_a_link_local_address_needs_its_scope(machine: Make, tmp_path: Path) -> None:
    only = machine(IPV6_ONLY)
    tower = only.start_tower(f"[{LINK}]")
    at = ("--tower", tower, "--host", "auto", "--insecure")
    store = only.start("store", "--dir", str(tmp_path / "d"), *at)
    assert store.end() == 2
    assert f"Arrow Flight cannot listen at the link-local address {LINK}" in store.said
    only.start_store(tower, "auto", "--flight-port", "off")
    only.run("produce", "t", *at, given="one\n")
    assert only.run("consume", "t", "--from-beginning", "--count", "1", *at) == "one\n"


@pytest.mark.parametrize(
    ("listens", "name", "host"),
    [
        ("127.0.0.1", "both", "both"),
        ("[::1]", "both", "both"),
        pytest.param("[::1]", "six", "six", marks=pytest.mark.nightly),
        pytest.param("six", "both", "four", marks=pytest.mark.nightly),
        ("*", "six", "six"),
    ],
)
def test_a_name_is_connected_to_by_either_family(
    machine: Make, listens: str, name: str, host: str
) -> None:
    both = machine(BOTH_FAMILIES)
    tower = f"{name}:{port_of(both.start_tower(listens))}"
    both.start_store(tower, host)
    both.check(tower, host)


def test_a_node_follows_its_tower_to_the_other_family(machine: Make) -> None:
    both = machine(BOTH_FAMILIES)
    ports = ("--sub-address", "tcp://{0}:7101", "--pub-address", "tcp://{0}:7102")
    first = both.start("tower", *(each.format("127.0.0.1") for each in ports))
    first.ready()
    both.start_store("both:7101:7102", "both")
    first.kill()
    both.start("tower", *(each.format("[::1]") for each in ports)).ready()
    at = ("--tower", "both:7101:7102", "--host", "both", "--insecure")
    wait_until(lambda: "store" in both.run("nodes", *at))


ANYWHERE = ("--sub-address", "tcp://*:0", "--pub-address", "tcp://*:0")


def ports_of(tower: str) -> str:
    return tower.partition(":")[2]


def refused(node: Node) -> str:
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
