"""A node near its limit of open files refuses peers completely, and logs it."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Tower
from dafka_core.nodes import peers, process_limits
from dafka_core.nodes.process_limits import (
    PER_PEER,
    PER_PEER_APART,
    SCAN_INTERVAL_S,
    PeerRoom,
    raise_limit,
    soft_limit,
)
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecord
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Lines, command, environment
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer

LIMIT = 70
CONSUMERS = 22
VALUES = [b"%d" % number for number in range(500)]


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


def test_peers_without_room_are_refused_by_name_until_others_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "UNREACHED_S", 1.0)
    with contextlib.ExitStack() as stack:
        tower = stack.enter_context(
            Tower(sub_address="tcp://127.0.0.1:0", pub_address="tcp://127.0.0.1:0")
        ).tower
        errors = stack.enter_context(limited_store(tmp_path, tower, "--flight-port", "off"))
        store = (tmp_path / "address").read_text().strip()
        with Producer("t", tower=tower) as producer:
            for value in VALUES:
                producer.publish(value)
        # All at once: most of them connect before the store has heard of them.
        with ThreadPoolExecutor(CONSUMERS) as pool:
            starting = [
                pool.submit(Consumer, tower=tower, start="earliest") for _ in range(CONSUMERS)
            ]
            consumers = [stack.enter_context(each.result()) for each in starting]
        got: dict[Consumer, list[bytes | None]] = {consumer: [] for consumer in consumers}
        for consumer in consumers:
            consumer.subscribe("t")

        def whole() -> list[Consumer]:
            for consumer, values in got.items():
                while (record := consumer.poll(0)) is not None:
                    values.append(record.value)
            assert all(values in ([], VALUES[: len(values)]) for values in got.values())
            return [consumer for consumer, values in got.items() if values == VALUES]

        said = b""
        while b"peers refused: open files limit 70; needed about 2 per peer + " not in said:
            said = errors.next() or b""
        refused = int(said.partition(b" peers refused")[0].split()[-1])
        needed = int(said.split()[-1])
        assert 0 < refused < CONSUMERS
        assert LIMIT < needed <= LIMIT + PER_PEER * CONSUMERS
        wait_until(lambda: len(whole()) >= 5)
        first = whole()
        assert len(first) < CONSUMERS
        # Refused nodes log it, with the peer that refuses them.  Nodes of other tests that still
        # run in this process may speak of their own peers meanwhile.
        told = re.compile(rf"{store} at tcp://\S+, keep no connection .* limit of open files")
        wait_until(lambda: len(told.findall(caplog.text)) >= refused)
        # Nodes that leave make room for refused ones.
        for consumer in first:
            consumer.close()
            del got[consumer]
        wait_until(lambda: len(whole()) >= min(len(first), CONSUMERS - len(first)))


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
        producer.publish(b"before")
        producer.flush(PATIENCE_S)
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
        producer.publish(b"meanwhile")
        producer.flush(PATIENCE_S)
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
    raise_limit()
    assert soft_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize(("acks", "per_peer"), [(1, PER_PEER), (2, PER_PEER_APART)])
def test_a_peer_takes_a_fixed_number_of_descriptors(
    tower: str, raw: Callable[..., RawPeer], acks: int, per_peer: int
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


def test_forged_beacons_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []

    def scan() -> int:
        scans.append(1)
        return 60

    monkeypatch.setattr(process_limits, "soft_limit", lambda: 60)
    monkeypatch.setattr(process_limits, "_open_count", scan)
    monkeypatch.setattr(process_limits, "MAX_REFUSED", 500)
    room = PeerRoom(PER_PEER)
    for number in range(10_000):
        now = number / 10_000  # in one second
        room.count(now, 0)
        assert not room.has_room(0)
        room.refuse(now, f"N{number}", f"tcp://h:{number}")
    assert len(scans) <= 1 / SCAN_INTERVAL_S + 1
    assert len(room.refused) == 500


def test_refusals_are_logged_until_the_peers_have_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_limits, "soft_limit", lambda: 60)
    monkeypatch.setattr(process_limits, "_open_count", lambda: 30)
    caplog.set_level(logging.INFO)
    room = PeerRoom(PER_PEER)
    assert room.count(0.0, 0)
    assert room.has_room(0)
    monkeypatch.setattr(process_limits, "_open_count", lambda: 44)
    assert room.count(1.0, 7)
    assert not room.has_room(7)
    room.refuse(0.0, "A", "tcp://a:1")
    room.refuse(2.0, "B", "tcp://b:1")
    for now in (2.0, 3.0):
        room.report(now, 7, 4.0)
    said = "2 peers refused: open files limit 60; needed about 2 per peer + 46: ulimit -n 64"
    assert caplog.text.count("peers refused") == caplog.text.count(said) == 1
    room.refuse(11.0, "B", "tcp://b:1")
    room.report(11.0, 7, 4.0)
    assert room.refused == {"tcp://b:1": ("B", 11.0)}
    room.report(30.0, 7, 4.0)
    assert room.refused == {}
    assert caplog.text.count("peers refused") == 1


def test_without_a_descriptor_for_the_scan_no_peer_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process_limits, "_open_count", none_left)
    room = PeerRoom(PER_PEER)
    assert room.count(0.0, 0)
    assert not room.has_room(0)
