"""Quotas of connections, each checked with a connection of the kernel's and a node's loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Store
from dafka_core.nodes import connection_quotas as module
from dafka_core.nodes.connection_quotas import OBSERVED_BYTES, OBSERVED_S, ConnectionQuotas
from dafka_core.security.permissions import Permissions
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S

SUBSCRIBED_BYTES = 1_000
LIMIT_BYTES = 4 * OBSERVED_BYTES
PART = bytes(1 << 20)
MALLORY = Permissions("mallory", frozenset())

LARGE = bytes(OBSERVED_BYTES + 1)
LARGE_COUNT = 10


class Sender:
    """One end of a connection; the other end has a quota."""

    def __init__(self) -> None:
        self.quotas = ConnectionQuotas(SUBSCRIBED_BYTES, encrypted=False)
        with socket.create_server(("127.0.0.1", 0)) as server:
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
        """Return True if the connection was shut down."""
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
    quotas, other = sender.quotas, Sender()
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


def test_subscriptions_of_an_ended_connection_do_not_count_for_the_next_one(
    sender: Sender,
) -> None:
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


def test_honest_peers_with_large_records_keep_their_connections(
    tower: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Store(tmp_path, tower=tower),
        Consumer(tower=tower) as consumer,
        Producer("t", tower=tower) as producer,
    ):
        consumer.subscribe("t")
        wait_until(lambda: producer.mesh.has_subscriber("t"))
        for _ in range(LARGE_COUNT):
            producer.publish(LARGE)
        for _ in range(LARGE_COUNT):
            record = consumer.poll(PATIENCE_S)
            assert record is not None
            assert record.value == LARGE
        producer.flush(PATIENCE_S)
    assert "ended the connection" not in caplog.text
