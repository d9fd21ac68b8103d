"""Two machines with a tower and a store on the first, and a store on the second."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.networks import Namespaces, Network, namespaces_work
from tests.chaos.nodes import Node, environment
from tests.chaos.relays import Relays

FIRST, SECOND = 0, 1


class Machines:
    """Machines as network namespaces, or as processes where namespaces are not permitted."""

    def __init__(self, stack: contextlib.ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        log = directory / "tower.log"
        self.network: Network = Namespaces(stack, log) if namespaces_work() else Relays(stack, log)
        self._own_hosts: dict[int, str] = {}
        self._nodes: dict[int, list[Node]] = {FIRST: [], SECOND: []}

    def tower(self, machine: int) -> str:
        """Return the towers of a machine's nodes."""
        return self.network.tower(machine)

    def start(
        self, machine: int, kind: str, *arguments: str, host: str = "", tower: str = ""
    ) -> Node:
        """Start a node; ``host`` is the address to bind to, if not the machine's."""
        at = ("--tower", tower or self.tower(machine), "--host", host or self.network.host(machine))
        return self._start(machine, kind, [*arguments, *(() if kind == "tower" else at)])

    def _start(self, machine: int, kind: str, arguments: Sequence[str]) -> Node:
        log = self._directory / f"{kind}{machine}{len(self._nodes[machine])}.log"
        node = Node(kind, arguments, log, self.network.prefix(machine))
        self._nodes[machine].append(self._stack.enter_context(node))
        return node

    def start_store(self, machine: int, *arguments: str) -> dict[str, Any]:
        directory = str(self._directory / f"store{machine}")
        return self.start(machine, "store", "--dir", directory, *arguments).ready()

    def run(self, machine: int, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program of the tests."""
        command: Sequence[str] = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(
            [*self.network.prefix(machine), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        return process

    def vanish(self, machine: int) -> None:
        """Let the machine lose power, without a message to any node."""
        if isinstance(self.network, Namespaces):
            self.network.cut(self.network.cuts[0])
        else:
            for node in self._nodes[machine]:
                node.kill()

    def hosts(self, machine: int, *lines: str) -> None:
        """Begin a machine's hosts file with these lines, in place of those added before."""
        assert isinstance(self.network, Namespaces)
        file = self.network.hosts(machine)
        own = self._own_hosts.setdefault(machine, file.read_text())
        file.write_text("\n".join([*lines, own]))

    def command(self, machine: int, script: str) -> None:
        subprocess.run([*self.network.prefix(machine), "sh", "-c", script], check=True, timeout=60)


@pytest.fixture
def separate(machines: Machines) -> Machines:
    """Machines with their own networks and files, which needs namespaces."""
    if not isinstance(machines.network, Namespaces):
        pytest.skip("needs namespaces, which this user cannot create (unshare -rnm)")
    return machines


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with contextlib.ExitStack() as stack:
        yield Machines(stack, tmp_path)
