"""Machines on a network that can be cut and joined.

Where an unprivileged user may create namespaces, a machine has a network and a mount namespace,
with its own address, boot id and hosts file. Cutting pulls its cable: packets vanish without
notice. ``relays.py`` works everywhere else.
"""

import contextlib
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.chaos.harness import ChaosError
from tests.chaos.nodes import Node, environment, start_tower

MACHINES = 2

_HUB = "ip link set lo up && ip link add name switch type bridge && ip link set switch up"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNT_WORKS = f"mount --bind /proc/version {_BOOT_ID}"
_STAY = "echo up && exec cat"  # until the harness closes its input


class Network(Protocol):
    """Machines 0 and 1."""

    @property
    def cuts(self) -> Sequence[str]:
        """The kinds of separation."""

    def prefix(self, machine: int) -> Sequence[str]:
        """Return the command prefix that runs a program on a machine."""

    def host(self, machine: int) -> str:
        """Return the address that a machine's nodes bind to."""

    def tower(self, machine: int) -> str:
        """Return the tower of a machine's nodes."""

    def cut(self, kind: str) -> None:
        """Separate the machines."""

    def join(self) -> None:
        """End the separation."""


def unshare_works(what: str, script: str = "true") -> bool:
    """Return whether namespaces of a kind can be created, with a script in them."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", what, "sh", "-c", script]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def namespaces_work() -> bool:
    """Return whether ``Namespaces`` can be used here."""
    return unshare_works("-rnm", f"{_HUB} && {_MOUNT_WORKS}")


class Process:
    """Start a process that holds namespaces during the stack; ``script`` sets them up."""

    def __init__(self, stack: contextlib.ExitStack, command: Sequence[str], script: str) -> None:
        process = subprocess.Popen(
            [*command, "sh", "-c", f"{script} && {_STAY}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        stack.callback(process.wait)
        stack.callback(process.stdout.close)
        stack.callback(process.stdin.close)
        if process.stdout.readline() != b"up\n":
            raise ChaosError(f"no namespace by {' '.join(command)}")


class Hosts:
    """Machines as network namespaces on a bridge, each with a cable that can be pulled."""

    def __init__(self, stack: contextlib.ExitStack, files: Path, count: int) -> None:
        self._stack = stack
        self._files = files
        self._count = count
        self._hub = Process(stack, ["unshare", "-rnm"], _HUB).pid
        self._machines = [self._machine(number) for number in range(count)]

    def prefix(self, machine: int) -> Sequence[str]:
        return _enter(self._machines[machine])

    def host(self, machine: int) -> str:
        return f"10.77.0.{machine + 1}"

    def pull(self, machine: int) -> None:
        self._in(self._hub, f"ip link set port{machine} down")

    def plug(self, machine: int) -> None:
        self._in(self._hub, f"ip link set port{machine} up")

    def link(self, machine: int, delay_s: float, let_in: str = "") -> None:
        """Give the machine another cable; see ``links.py``."""
        cable, port = f"cable{machine}", f"port{machine}"
        near, far = f"near{machine}", f"far{machine}"
        self._in(
            self._hub,
            f"ip link set {port} nomaster && ip link add name {far} type veth peer name {near} && "
            f"ip link set {near} master switch && ip link set {near} up && ip link set {far} up",
        )
        program = [sys.executable, "-m", "tests.chaos.links"]
        for prefix, interface in ((self.prefix(machine), cable), (_enter(self._hub), near)):
            subprocess.run([*prefix, *program, interface], check=True, env=environment())
        ports = [let_in] if let_in else []
        passing = subprocess.Popen(
            [*_enter(self._hub), *program, port, far, str(delay_s), *ports],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert passing.stdout is not None
        self._stack.callback(passing.communicate)
        self._stack.callback(passing.kill)
        if passing.stdout.readline() != b"passing\n":
            raise ChaosError(f"no link between {port} and {far}")

    def hosts(self, machine: int) -> Path:
        return self._files / f"hosts{machine}"

    def _machine(self, number: int) -> int:
        boot_id, hosts = self._files / f"boot_id{number}", self.hosts(number)
        boot_id.write_text(f"{uuid.uuid4()}\n")
        names = [f"{self.host(each)} machine{each}\n" for each in range(self._count)]
        hosts.write_text("".join(["127.0.0.1 localhost\n", *names]))
        own = f"mount --bind {boot_id} {_BOOT_ID} && mount --bind {hosts} /etc/hosts"
        machine = Process(
            self._stack, [*_enter(self._hub), "unshare", "-nm"], f"ip link set lo up && {own}"
        ).pid
        cable, port = f"cable{number}", f"port{number}"
        self._in(
            self._hub,
            f"ip link add name {cable} type veth peer name {port} && "
            f"ip link set {cable} netns {machine} && "
            f"ip link set {port} master switch && ip link set {port} up",
        )
        address = f"{self.host(number)}/24"
        self._in(machine, f"ip addr add {address} dev {cable} && ip link set {cable} up")
        return machine

    @staticmethod
    def _in(pid: int, script: str) -> None:
        done = subprocess.run(
            [*_enter(pid), "sh", "-c", script], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ChaosError(f"{script}: {done.stderr}")


class Namespaces(Hosts):
    """Two such machines; the tower is on machine 0."""

    cuts = ("cable pulled",)

    def __init__(self, stack: contextlib.ExitStack, log: Path) -> None:
        super().__init__(stack, log.parent, MACHINES)
        node: Node = stack.enter_context(start_tower(log, (0, 0), self.host(0), self.prefix(0)))
        self._tower = str(node.ready()["tower"])

    def tower(self, machine: int) -> str:
        return self._tower

    def cut(self, kind: str) -> None:
        self.pull(1)

    def join(self) -> None:
        self.plug(1)


def _enter(pid: int) -> Sequence[str]:
    return ("nsenter", "-t", str(pid), "-U", "-n", "-m", "--preserve-credentials")
