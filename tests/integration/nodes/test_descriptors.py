"""A node near its limit of open files serves peers whole, or not at all, and says so."""

from __future__ import annotations

import contextlib
import logging
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Tower
from dafka_core.nodes import descriptors
from dafka_core.nodes.descriptors import PER_PEER, RESERVE, PeerRoom, raise_limit
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Lines, command, environment

LIMIT = 70
CONSUMERS = 22
VALUES = [b"%d" % number for number in range(500)]


@contextlib.contextmanager
def limited_store(directory: Path, tower: str) -> Iterator[Lines]:
    """A store that may have ``LIMIT`` files open; what it says on standard error."""
    limited = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, "
    limited += f"{LIMIT})); os.execv(sys.argv[1], sys.argv[1:])"
    arguments = ["store", "--dir", str(directory), "--tower", tower, "--flight-port", "off"]
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
            assert process.stdout.readline().startswith(b"READY ")
            yield errors
        finally:
            process.kill()
            process.wait()
            errors.close()


def test_peers_without_room_are_refused_whole_and_by_name_until_there_is_room(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        tower = stack.enter_context(
            Tower(sub_address="tcp://127.0.0.1:0", pub_address="tcp://127.0.0.1:0")
        ).tower
        errors = stack.enter_context(limited_store(tmp_path, tower))
        assert b"open files limit 70: there is room for about" in (errors.next() or b"")
        with Producer("t", tower=tower) as producer:
            for value in VALUES:
                producer.publish(value)
        # All at once: most of them connect before the store has heard of them.
        with ThreadPoolExecutor(CONSUMERS) as pool:
            starting = [
                pool.submit(Consumer, tower=tower, start="earliest") for _ in range(CONSUMERS)
            ]
            consumers = [stack.enter_context(each.result()) for each in starting]
        got: dict[Consumer, list[bytes]] = {consumer: [] for consumer in consumers}
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
        refused = int(said.split()[0])
        needed = int(said.split()[-1])
        assert 0 < refused < CONSUMERS
        assert LIMIT < needed <= LIMIT + PER_PEER * CONSUMERS
        wait_until(lambda: len(whole()) >= 5)
        first = whole()
        assert len(first) < CONSUMERS
        # Those who leave make room for those who were refused.
        for consumer in first:
            consumer.close()
            del got[consumer]
        wait_until(lambda: len(whole()) >= min(len(first), CONSUMERS - len(first)))


def test_a_node_raises_its_soft_limit() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "from dafka_core import Tower\n"
        "with Tower(sub_address='tcp://127.0.0.1:0', pub_address='tcp://127.0.0.1:0'):\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "(300, 300)\n"
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_what_is_refused_is_said_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "raise_limit", lambda: 60)
    monkeypatch.setattr(descriptors, "_open_descriptors", lambda: list(range(30)))
    caplog.set_level(logging.INFO)
    room = PeerRoom(1, PER_PEER)
    assert room.look(0)
    assert f"room for about {(60 - 30 - RESERVE) // PER_PEER} peers" in caplog.text
    monkeypatch.setattr(descriptors, "_open_descriptors", lambda: list(range(44)))
    assert not room.look(7)
    room.refuse(0.0, "A", "tcp://a:1")
    room.refuse(2.0, "B", "tcp://b:1")
    for now in (2.0, 3.0):
        room.report(now, 7, 4.0)
    said = "2 peers refused: open files limit 60; needed about 2 per peer + 46: ulimit -n 64"
    assert caplog.text.count("peers refused") == caplog.text.count(said) == 1
    room.refuse(11.0, "B", "tcp://b:1")
    room.report(11.0, 7, 4.0)
    assert caplog.text.count("peers refused") == 1
    room.report(12.5, 7, 4.0)
    assert "1 peers refused" in caplog.text
    room.report(30.0, 7, 4.0)
    assert "no peers are refused any more" in caplog.text
    assert room.refused == {}


def test_without_a_descriptor_to_look_with_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> list[int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(descriptors, "_open_descriptors", none_left)
    assert not PeerRoom(1, PER_PEER).look(0)
