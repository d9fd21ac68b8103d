"""The open files of a node, and its limit of them."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Tower
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecord
from dafka_core.system.process_limits import raise_limit, soft_limit
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Lines, command, environment
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer

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


@pytest.mark.parametrize(("acks", "per_peer"), [(1, 2), (2, 5)])
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
