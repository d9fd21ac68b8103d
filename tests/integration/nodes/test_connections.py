"""Connections on which nothing leaves any more, or whose other end is gone without a word.

The times are shorter here than nodes have them; what the kernel does after them is the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.nodes import sockets as module
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Dafka
from tests.integration.nodes.connections import Connection, cable_pulled, connections, now
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S

STALLED_MS = 1_000
IDLE_S = 1  # the kernel knows nothing shorter

LARGE_COUNT = 32
LARGE = bytes(1 << 20)
"""Together some times what the kernel keeps at both ends of a connection (about 4 MB here)."""

PADDING = b"." * 20_000


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_MS", STALLED_MS)
    monkeypatch.setattr(module, "IDLE_S", IDLE_S)


@pytest.fixture
def sockets() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """One that sends and one that receives, bare."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.XPUB) as pub, context.socket(zmq.SUB) as sub:
        for socket in (pub, sub):
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        yield pub, sub
    context.term()


def to_its_peers(producer: Producer) -> list[Connection]:
    """The producer's ends of the connections that it publishes on."""
    return [each for each in connections() if each.port == producer._mesh.beacon.port]


def from_producer(producer: Producer) -> list[Connection]:
    """The other ends of them."""
    return [each for each in connections() if each.peer_port == producer._mesh.beacon.port]


@pytest.mark.usefixtures("_short_times")
def test_what_waits_for_a_peer_that_takes_nothing_is_freed(
    sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    pub, sub = sockets
    pub.set(zmq.XPUB_VERBOSE, 1)  # it is told of the second connection as of the first
    sub.set_hwm(1)  # with that in its queue it takes nothing from the connection
    module.drop_stalled_peers(pub)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    sub.connect(f"tcp://127.0.0.1:{port}")
    sub.subscribe(b"")
    assert pub.recv() == b"\x01"
    waiting = [pub.send(LARGE, copy=False, track=True) for _ in range(LARGE_COUNT)]

    def freed() -> bool:
        pub.poll(0)  # a socket hears of its connections' ends only when it is asked something
        return all(each.done for each in waiting)

    wait_until(freed, "ZeroMQ to need none of the messages")
    got: list[bytes] = []

    def came_back() -> bool:
        """It does by itself, when it reads on."""
        if sub.poll(0):
            got.append(sub.recv())
        return bool(pub.poll(0)) and pub.recv() == b"\x01"

    wait_until(came_back, "the peer to connect anew")
    pub.send(b"after")
    # What had reached it before comes first.
    while b"after" not in got:
        got.append(sub.recv())
    assert len(got) <= LARGE_COUNT


@pytest.mark.usefixtures("_short_times")
def test_a_stopped_consumer_is_cut_off_and_has_everything_when_it_goes_on(
    tower: str, produce: Callable[..., Producer]
) -> None:
    producer = produce("t")
    # Eight megabytes; the high-water mark is far from them.
    published = [b"%d%s" % (number, PADDING) for number in range(400)]
    with Dafka("consume", "t", "--tower", tower, "--from-beginning") as consumer:
        producer.publish(b"before")
        assert consumer.out.next() == b"before"
        [stalled] = to_its_peers(producer)
        consumer.process.send_signal(signal.SIGSTOP)
        producer.publish_many(published)
        wait_until(lambda: now(stalled) is None, "the connection's end")
        producer.publish(b"cut off")
        consumer.process.send_signal(signal.SIGCONT)
        wait_until(lambda: to_its_peers(producer), "a new connection")
        producer.publish(b"after")
        found = [consumer.out.next() for _ in range(len(published) + 2)]
    assert found == [*published, b"cut off", b"after"]


@pytest.mark.usefixtures("_short_times")
def test_a_consumer_finds_out_that_it_was_cut_off_while_nothing_got_through(
    produce: Callable[..., Producer], consume: Callable[..., Consumer]
) -> None:
    consumer, producer = consume("t"), produce("t")
    producer.publish(b"before")
    assert consumer.poll(PATIENCE_S) == ("t", producer.address, 0, b"before")
    [ours] = to_its_peers(producer)
    [theirs] = from_producer(producer)
    with cable_pulled(theirs):
        producer.publish(b"lost")
        wait_until(lambda: now(ours) is None, "the producer to let go of the connection")
        # The first question is lost, so that there has to be a second one.
        wait_until(lambda: (each := now(theirs)) and each.unanswered, "an unanswered question")
    wait_until(lambda: now(theirs) is None, "the consumer to find out")
    producer.publish(b"after")
    found = [consumer.poll(PATIENCE_S) for _ in range(2)]
    assert found == [("t", producer.address, 1, b"lost"), ("t", producer.address, 2, b"after")]


def test_nodes_of_all_kinds_keep_an_eye_on_all_their_connections(tmp_path: Path) -> None:
    with (
        Tower(**ANY_PORTS) as hub,
        Store(tmp_path, tower=hub.tower) as store,
        Producer("t", tower=hub.tower) as producer,
        Consumer(tower=hub.tower) as consumer,
        Reader(tower=hub.tower) as reader,
    ):
        nodes = (store, producer, consumer, reader)
        ports = {node._mesh.beacon.port for node in nodes}
        towers = {hub.sub_port, hub.pub_port}

        def ends() -> list[Connection]:
            return [
                each for each in connections() if {each.port, each.peer_port} & (ports | towers)
            ]

        # Two to the tower from each, and one to each other node; each has two ends here.
        count = 2 * len(nodes) * (2 + len(nodes) - 1)
        wait_until(lambda: len(ends()) == count, f"{count} ends, of these: {ends()}")
        silent = {each.inode: each for each in ends()}

        def all_are_asked() -> bool:
            # A connection on which something is under way shows the timer of that instead.
            for each in ends():
                within_s = each.asks_within_s
                if within_s is not None and within_s <= module.IDLE_S:
                    silent.pop(each.inode, None)
            return not silent

        try:
            wait_until(all_are_asked)
        except AssertionError:
            raise AssertionError(f"TCP does not ask on {list(silent.values())}") from None
