"""Quotas of connections, each checked with a connection of the kernel's and a node's loop."""

import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.greedy import KINDS, beside
from dafka_core import Consumer, Producer, Tower
from dafka_core.nodes import connection_quotas as module
from dafka_core.nodes.connection_quotas import OBSERVED_BYTES, OBSERVED_S, ConnectionQuotas
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecord
from dafka_core.security.permissions import Permissions
from dafka_core.system.files import open_files_limit, raise_open_files_limit
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Lines, command, environment
from tests.integration.nodes.conftest import Raw, Start
from tests.integration.nodes.connections import DESCRIPTORS
from tests.integration.nodes.content import flushed, values
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S

SUBSCRIBED_BYTES = 1_000
LIMIT_BYTES = 4 * OBSERVED_BYTES
PART = bytes(1 << 20)
MALLORY = Permissions("mallory", frozenset())


class Sender:
    """One end of a connection; the other end, at a port, has a quota."""

    def __init__(self, port: int = 0) -> None:
        self.quotas = ConnectionQuotas(SUBSCRIBED_BYTES, encrypted=False)
        with socket.create_server(("127.0.0.1", port)) as server:
            self.near = socket.create_connection(server.getsockname())
            self.far, _ = server.accept()
        self.descriptor = self.far.fileno()
        self.endpoint = f"tcp://peer:{self.near.getsockname()[1]}"
        self._times = count(1.0)

    def follow(self, limit_bytes: int) -> None:
        """Take the connection for one that the node has made."""
        self.quotas.follow(self.descriptor, self.endpoint, limit_bytes, MALLORY)

    def subscribe(self, *frames: bytes) -> None:
        """Take the connection for one that the node has accepted."""
        connection = self.quotas.accepted(self.descriptor, self.near.getsockname())
        connection.owner = MALLORY
        for each in frames:
            self.quotas.subscribe(connection, each)

    def send(self, size_bytes: int) -> None:
        """Send and receive, as ZeroMQ's thread does."""
        while size_bytes:
            part = PART[:size_bytes]
            self.near.sendall(part)
            rest = len(part)
            while rest:
                rest -= len(self.far.recv(rest))
            size_bytes -= len(part)

    def check(self, times: int = 1, rounds: int = 2) -> None:
        """Let the loop run, and check the connection, each time later than ``OBSERVED_S``."""
        for _ in range(times):
            self.quotas.rounds += rounds
            self.quotas.check(next(self._times))

    def is_ended(self) -> bool:
        self.near.settimeout(0)
        try:
            return not self.near.recv(1)
        except BlockingIOError:
            return False
        finally:
            self.near.settimeout(None)


@pytest.fixture
def sender() -> Iterator[Sender]:
    found = Sender()
    assert OBSERVED_S < 1
    with found.near, found.far:
        yield found


def test_a_descriptor_may_be_that_of_another_connection_by_now(sender: Sender) -> None:
    """Events of a connection come later than its end."""
    # Connections to different ports may have one address.
    quotas, other = sender.quotas, Sender(sender.far.getsockname()[1])
    with other.near, other.far:
        quotas.follow(other.descriptor, other.endpoint, OBSERVED_BYTES, MALLORY)
        os.dup2(sender.descriptor, other.descriptor)
        sender.send(2 * OBSERVED_BYTES)
        sender.check()
        assert not quotas.observed
        sender.check()
    assert not sender.is_ended()
    sender.follow(OBSERVED_BYTES)
    quotas.follow(sender.descriptor, "tcp://earlier:1", OBSERVED_BYTES, MALLORY)
    sender.send(2 * OBSERVED_BYTES)
    sender.check(2)
    assert sender.is_ended()


def test_subscriptions_above_the_quota_end_the_connection(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    half = bytes(SUBSCRIBED_BYTES // 2)
    for _ in range(10):
        sender.subscribe(b"\1" + half, b"\1" + half, b"\0" + half, b"\0" + half)
    sender.subscribe(b"\1" + half, b"\1" + half)
    assert not sender.is_ended()
    sender.subscribe(b"\1x")
    assert sender.is_ended()
    [line] = caplog.messages
    host, port = sender.near.getsockname()
    assert f"{host}:{port} with key mallory, which subscribes to more than 1000 bytes" in line


def test_subscriptions_of_an_ended_connection_do_not_count_for_the_next_one(sender: Sender) -> None:
    half, other = b"\1" + bytes(SUBSCRIBED_BYTES // 2), Sender()
    with other.near, other.far:
        other.subscribe(half, half)
        os.dup2(sender.descriptor, other.descriptor)
        sender.quotas, sender.descriptor = other.quotas, other.descriptor
        sender.subscribe(half, half)
        assert not sender.is_ended()
        sender.subscribe(half)
        assert sender.is_ended()


def test_unread_bytes_at_a_bound_socket_end_the_connection(sender: Sender) -> None:
    sender.subscribe(b"\1")
    for _ in range(5):
        sender.send(2 * SUBSCRIBED_BYTES)
        sender.quotas.note(sender.descriptor)
        sender.check()
    sender.send(2 * SUBSCRIBED_BYTES)
    sender.check()
    assert not sender.is_ended()
    sender.send(1)
    sender.check()
    assert sender.is_ended()


def test_a_peer_may_send_any_number_of_messages_and_none_above_its_limit(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    quotas, descriptor = sender.quotas, sender.descriptor
    sender.follow(LIMIT_BYTES)
    for _ in range(4):
        sender.send(OBSERVED_BYTES + 1)
        sender.check()
        assert quotas.observed == {descriptor}
        quotas.note(descriptor)
        sender.check()
    sender.send(LIMIT_BYTES)
    sender.check(3)
    assert not sender.is_ended()
    sender.send(1)
    sender.check()
    assert sender.is_ended()
    assert f"{sender.endpoint} with key mallory, which has sent 33554433 bytes" in caplog.text


@pytest.mark.parametrize("reason", ["peer is not read", "loop is busy"])
def test_a_peer_that_the_loop_does_not_read_from_keeps_its_connection(
    sender: Sender, reason: str
) -> None:
    quotas = sender.quotas
    sender.follow(OBSERVED_BYTES)
    quotas.is_paused = reason == "peer is not read"
    sender.send(2 * OBSERVED_BYTES)
    sender.check(4, rounds=0 if reason == "loop is busy" else 2)
    assert not sender.is_ended()
    quotas.is_paused = False
    sender.send(2 * OBSERVED_BYTES)
    sender.check(2)
    assert sender.is_ended()


def test_tiny_frames_are_known_by_the_memory_they_take(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first such message the process has the memory for the next one."""
    peak_bytes = 1 << 30
    monkeypatch.setattr(module, "_peak_bytes", lambda: peak_bytes)
    sender.follow(LIMIT_BYTES)
    sender.send(OBSERVED_BYTES + 1)
    sender.check()
    peak_bytes += module.GROWTH_BYTES + module.GROWTH_FACTOR * OBSERVED_BYTES
    sender.check()
    assert not sender.is_ended()
    peak_bytes += 1 << 20
    sender.check()
    assert sender.is_ended()
    again = Sender()
    with again.near, again.far:
        again.quotas = sender.quotas
        again.follow(LIMIT_BYTES)
        again.send(OBSERVED_BYTES + 1)
        again.check(2)
        assert again.is_ended()


def test_checks_continue_after_one_without_a_free_file(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without_files:

        def fail() -> int:
            raise OSError(errno.EMFILE, "too many open files")

        without_files.setattr(module, "_peak_bytes", fail)
        sender.follow(OBSERVED_BYTES)
        sender.send(2 * OBSERVED_BYTES)
        sender.check(3)
        assert not sender.is_ended()
    sender.check(3)
    assert sender.is_ended()


COUNT = 5_000
TIMES_AS_LONG = 10
AT_LEAST_S = 5.0
"""A run alone takes half a second; a faster run than this limit is not starved."""

MAX_GROWTH_BYTES = 400 << 20
KEY_BYTES = 4 << 20
GUARDED = {"max_key_bytes": KEY_BYTES}
LONGER = [kind for kind in KINDS if kind not in ("records", "connections")]


def honest(tower: str, topic: str) -> float:
    """Return the time that a producer and a consumer take for the records of a topic."""
    began = time.monotonic()
    with Consumer(tower=tower) as consumer, Producer(topic, tower=tower) as producer:
        consumer.subscribe(topic)
        sent = values(COUNT)
        for first in range(0, COUNT, 100):
            producer.publish_many(sent[first : first + 100])
        producer.flush(PATIENCE_S)
        found: list[bytes | None] = []
        while len(found) < COUNT:
            record = consumer.poll(PATIENCE_S)
            assert record is not None
            found.append(record.value)
    assert found == sent
    return time.monotonic() - began


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("records", GUARDED),
        ("connections", GUARDED),
        *(pytest.param(kind, GUARDED, marks=pytest.mark.nightly) for kind in LONGER),
        pytest.param("records", {"high_water_mark": 1_000}, marks=pytest.mark.nightly),
    ],
)
def test_a_greedy_peer_does_not_starve_honest_ones(
    start: Start, tower: str, kind: str, options: dict[str, Any]
) -> None:
    store = start(**options)
    mesh = store.mesh
    alone_s = honest(tower, "alone")
    before = anonymous_bytes()
    with beside(kind, tower, mesh.peers.inbound.endpoint):
        took_s = min(honest(tower, f"beside{number}") for number in range(3))
        grown = anonymous_bytes() - before
        if kind == "records" and options is GUARDED:
            refused = store.role.limits.refused
            wait_until(lambda: refused["max_key_bytes"] > 0, "the greedy one to be refused")
        elif kind == "connections":
            wait_until(lambda: len(list(DESCRIPTORS.iterdir())) > 200, "its connections")
    assert took_s < max(TIMES_AS_LONG * alone_s, AT_LEAST_S)
    assert grown < MAX_GROWTH_BYTES


LIMIT = 70


@contextlib.contextmanager
def limited_store(
    directory: Path, tower: str, *options: str, ready: list[bytes] | None = None
) -> Iterator[Lines]:
    """A store that may have ``LIMIT`` files open; yields the lines of its standard error."""
    limited = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, "
    limited += f"{LIMIT})); os.execv(sys.argv[1], sys.argv[1:])"
    arguments = ["store", "--dir", str(directory), "--tower", tower, *options]
    with subprocess.Popen(
        [sys.executable, "-c", limited, *command(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = Lines(process.stderr)
        try:
            line = process.stdout.readline()
            assert line.startswith(b"READY ")
            if ready is not None:
                ready.append(line.removeprefix(b"READY "))
            yield errors
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
            errors.close()


@pytest.mark.parametrize("of", ["mesh", "flight"])
def test_strangers_that_take_all_open_files_end_no_store_and_no_connection(
    of: str, tmp_path: Path
) -> None:
    keys = Keys(tmp_path / "keys")
    told = [f"--{name.replace('_', '-')}={value}" for name, value in keys.of("store").items()]
    ready: list[bytes] = []
    with contextlib.ExitStack() as stack:
        tower = stack.enter_context(Tower(**ANY_PORTS, **keys.of("tower"))).tower
        errors = stack.enter_context(limited_store(tmp_path / "s", tower, *told, ready=ready))
        producer = stack.enter_context(Producer("t", tower=tower, **keys.of("client")))
        flushed(producer, [b"before"])
        [(_, endpoint)] = producer.mesh.peers.table.addresses()
        place = json.loads(ready[0])["flight"][1] if of == "flight" else endpoint
        strangers = stack.enter_context(contextlib.ExitStack())
        for _ in range(2 * LIMIT):
            stranger = strangers.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", int(place.rpartition(":")[2])))
        said = b""
        while b"(Too many open files); the known keys stay valid" not in said:
            said = errors.next() or b""
        (keys.allowed / "tower.key").touch()
        flushed(producer, [b"meanwhile"])
        assert producer.mesh.peers.renewal_count == 0
        strangers.close()
        Consumer(tower=tower, **keys.of("client")).close()


def test_a_node_in_an_application_raises_its_soft_limit(tower: str) -> None:
    code = (
        "import resource; from dafka_core import Consumer\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (15, 300))\n"
        f"Consumer(tower={tower!r}).close()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "(300, 300)\n"


def test_a_process_of_ours_raises_its_soft_limit_at_once() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "from dafka_core.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("(300, 300)\n")
    raise_open_files_limit()
    assert open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize(("acks", "per_peer"), [(1, 2), (2, 5)])
def test_a_peer_takes_a_fixed_number_of_descriptors(
    tower: str, raw: Raw, acks: int, per_peer: int
) -> None:
    # In a process of its own, where no other end of a connection is.
    code = (
        "import os, sys, time; from dafka_core import Producer\n"
        "def count(): return len(os.listdir('/proc/self/fd'))\n"
        f"node = Producer('t', tower={tower!r}, acks={acks})\n"
        "before = count(); print(node.address, flush=True)\n"
        "while sys.stdin.readline(): print(count() - before, flush=True)\n"
        "os._exit(0)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def count() -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            return int(process.stdout.readline())

        address = process.stdout.readline().strip()
        own = [raw() for _ in range(3)]
        for peer in own:
            peer.wait_until_subscribed(subscription(DirectRecord, address))
            peer.wait_until_met(address)
        wait_until(lambda: count() >= 3 * per_peer)
        assert count() == 3 * per_peer
        process.stdin.close()
