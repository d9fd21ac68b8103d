"""Peers that send anything at all: it is counted and dropped, and good traffic goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from dafka_core import Consumer, Producer, Reader, Store
from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.model.epochs import EPOCH_BYTES
from dafka_core.model.records import PartitionInfo, TopicPartition, Transaction, TransactionState
from dafka_core.protocol.beacons import TowerBeacon, encode_tower_beacon
from dafka_core.protocol.codec import encode, subscription
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    Fetch,
    GetHeads,
    Head,
    HeadsQuery,
    HeadsReply,
    Message,
    RecordBatchMessage,
    RecordMessage,
    StoreHello,
    TimesQuery,
    TimesReply,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

TP = TopicPartition("t", "P")

PACKED_ONE = bytes([1, 0, 0, 0]) + b"x"
HUGE = 2**63 - 2


class Mesh:
    """One node of each kind, and a hostile peer that all of them listen to."""

    def __init__(self, tower: str, directory: Path, nodes: ExitStack) -> None:
        self.store = nodes.enter_context(Store(directory, tower=tower))
        self.producer = nodes.enter_context(Producer("t", tower=tower))
        self.consumer = nodes.enter_context(Consumer(tower=tower))
        self.reader = nodes.enter_context(Reader(tower=tower))
        self.consumer.subscribe("t")
        self.hostile = nodes.enter_context(RawPeer(tower))
        for prefix in (
            subscription(ConsumerHello, self.store.address),
            subscription(Ack, self.producer.address),
            subscription(RecordBatchMessage, "t"),
            subscription(TimesReply, self.reader.address),
        ):
            self.hostile.wait_until_subscribed(prefix)
        self._published = 0

    def invalid_count(self) -> int:
        nodes = (self.store, self.producer, self.consumer, self.reader)
        return sum(node._mesh.invalid_count for node in nodes)

    def everything(self) -> Iterator[Message]:
        """Every message that some node of these takes."""
        partition, topic = self.producer.address, "t"
        store, consumer, reader = self.store.address, self.consumer.address, self.reader.address
        yield RecordMessage(topic, "P", 0, b"x")
        yield RecordBatchMessage(topic, "P", 0, 1, PACKED_ONE)
        for requestor in (store, consumer, reader):
            yield DirectRecord(requestor, topic, "P", 0, b"x")
            yield DirectRecordBatch(requestor, topic, "P", 0, 1, PACKED_ONE)
            yield DirectHead(requestor, topic, "P", 0)
            yield StoreHello(requestor, "S")
        yield Fetch(partition, "R", topic, 0, 10)
        yield Ack(partition, topic, 0)
        yield Head(topic, "P", 0)
        yield GetHeads(topic, "R")
        yield ConsumerHello(store, "R", (topic,))
        yield HeadsQuery("R", 1, (topic,))
        yield TimesQuery("R", 1, topic, partition, 0, 1)
        yield HeadsReply(reader, 1, "S", 0, 1, (PartitionInfo(topic, "P", 0, 1),))
        yield TimesReply(reader, 1, "S", 0, 1, ((0, 1),))

    def assert_works(self) -> None:
        """A record goes from the producer through all others."""
        assert not self.store.wait(0)
        value = b"good %d" % self._published
        offset = self.producer.publish(value)
        self.producer.flush(PATIENCE_S)
        while (record := self.consumer.poll(PATIENCE_S)) is not None:
            if record.partition == self.producer.address:
                break
        assert record is not None
        assert record[:4] == ("t", self.producer.address, offset, value)
        tp = TopicPartition("t", self.producer.address)
        batches = self.reader.read(tp, offset, offset + 1, timeout_s=PATIENCE_S)
        assert [batch.values.to_list() for batch in batches] == [[value]]
        self._published += 1


@pytest.fixture
def mesh(tower: str, tmp_path: Path, open_nodes: ExitStack) -> Mesh:
    made = Mesh(tower, tmp_path, open_nodes)
    made.assert_works()
    return made


def spoiled(frames: list[bytes], chance: random.Random) -> Iterator[list[bytes]]:
    """What a message may become on its way: cut, flipped, with a frame too many or too few."""
    header = frames[0]
    # What nodes subscribe to stays whole, else the garbage would not reach them.
    topic_end = header.find(b"\0") if b"\0" in header else len(header)
    for index, frame in enumerate(frames):
        first = topic_end if index == 0 else 0
        for _ in range(6):
            if first < len(frame):
                cut = chance.randrange(first, len(frame))
                yield [*frames[:index], frame[:cut], *frames[index + 1 :]]
                flipped = bytearray(frame)
                flipped[chance.randrange(first, len(frame))] ^= 1 << chance.randrange(8)
                yield [*frames[:index], bytes(flipped), *frames[index + 1 :]]
        yield [*frames[:index], frame + b"\0", *frames[index + 1 :]]
    yield [*frames, b"surplus"]
    yield [*frames, b"", b"", b"", b""]
    yield [header, header]
    yield [header[:1]]
    yield [header[: topic_end + 1]]
    yield [header + bytes(8_000)]


@pytest.mark.parametrize("layout", [C_LAYOUT, RFC46])
def test_spoiled_messages_are_counted_and_dropped(mesh: Mesh, layout: str) -> None:
    chance = random.Random(46)
    before = mesh.invalid_count()
    sent = 0
    for message in mesh.everything():
        for frames in spoiled(encode(message, layout), chance):
            mesh.hostile.send_frames(frames)
            sent += 1
    assert sent > 300
    # Marked by a last one, which all nodes take in turn.
    wait_until(lambda: mesh.invalid_count() > before + sent // 4)
    mesh.assert_works()


LYING_RUNS = [
    (0, b""),
    (1, b""),
    (1, b"\xff\xff\xff\xff"),
    (1, bytes([2, 0, 0, 0]) + b"x"),
    (1, bytes([0, 0, 0, 0]) + b"x"),
    (2, bytes([1, 0, 0, 0]) + b"x"),
    (2, bytes([0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0]) + b"x"),
    (65_537, bytes(4 * 65_537)),
    (2**32 - 1, PACKED_ONE),
]


@pytest.mark.parametrize(("count", "value"), LYING_RUNS)
def test_packed_batches_that_lie_about_their_lengths(mesh: Mesh, count: int, value: bytes) -> None:
    before = mesh.invalid_count()
    honest = RecordBatchMessage("t", "P", 0, 1, PACKED_ONE)
    behind = bytes(24 + EPOCH_BYTES)
    header = encode(honest)[0][: -4 - len(behind)] + count.to_bytes(4, "big") + behind
    mesh.hostile.send_frames([header, value])
    wait_until(lambda: mesh.invalid_count() >= before + 2)  # the store and the consumer
    assert mesh.store.log.end(TP) == 0
    mesh.hostile.send(honest)
    wait_until(lambda: mesh.store.log.end(TP) == 1)
    mesh.assert_works()


@pytest.mark.parametrize(
    "transaction",
    [(1, 0, 0), (1, 1, 2), (1, 5, 0), (2**63, 0, 1), (2**64 - 2, 0, 1), (0, 0, 2**63)],
)
def test_packed_batches_that_lie_about_their_transactions(
    mesh: Mesh, transaction: tuple[int, ...]
) -> None:
    before = mesh.invalid_count()
    honest = RecordBatchMessage("t", "P", 0, 1, PACKED_ONE, Transaction(1, 0, 1))
    octets = b"".join(number.to_bytes(8, "big") for number in transaction)
    behind = bytes(EPOCH_BYTES + 4)
    names = encode(honest)[0][: -24 - len(behind)]
    for header in (names + behind, names + octets + behind):
        mesh.hostile.send_frames([header, PACKED_ONE])
    wait_until(lambda: mesh.invalid_count() >= before + 4)  # the store and the consumer
    assert mesh.store.log.transaction_state(TP) == TransactionState(0, 0, "", None)
    mesh.hostile.send(honest)
    wait_until(lambda: mesh.store.log.transaction_state(TP).transaction == Transaction(1, 0, 1))
    mesh.assert_works()


def test_forged_heads_ask_for_nothing_that_stops_others(mesh: Mesh) -> None:
    mesh.hostile.subscribe(subscription(Fetch))
    for partition in ("P", mesh.producer.address):
        mesh.hostile.send(Head("t", partition, HUGE))
        for requestor in (mesh.store.address, mesh.consumer.address):
            mesh.hostile.send(DirectHead(requestor, "t", partition, HUGE))
    mesh.hostile.send(RecordMessage("t", "P2", HUGE, b"the last there can be"))
    wait_until(lambda: ("t", "P2") in mesh.consumer.positions())
    mesh.assert_works()
    mesh.assert_works()
    assert mesh.store.log.end(TopicPartition("t", "P2")) == 0


@pytest.mark.parametrize("size_bytes", [256, 4_000, 8_000, 70_000])
def test_topics_of_any_length(mesh: Mesh, size_bytes: int) -> None:
    before = mesh.invalid_count()
    long = b"t" * size_bytes
    good = encode(RecordMessage("t", "P", 0, b"x"))[0]
    mesh.hostile.send_frames([b"M" + long + good[2:], b"x"])
    mesh.hostile.send_frames([b"M" + long])
    mesh.hostile.send_frames([b"H" + long + b"\0\1"])
    wait_until(lambda: mesh.invalid_count() >= before + 3)
    mesh.assert_works()


def test_records_nobody_asked_for(mesh: Mesh) -> None:
    for requestor in (mesh.store.address, mesh.consumer.address, mesh.reader.address):
        for sequence in (0, 5, 1_000_000, HUGE):
            mesh.hostile.send(DirectRecord(requestor, "t", "P", sequence, b"unasked"))
            mesh.hostile.send(DirectRecord(requestor, "never heard of", "P", sequence, b"x"))
    wait_until(lambda: mesh.store.log.end(TP) == 1)
    mesh.assert_works()


def test_many_names_at_once(mesh: Mesh) -> None:
    for number in range(20_000):
        mesh.hostile.send(Head("t", f"P{number}", 0))
    wait_until(lambda: len(mesh.consumer.positions()) >= 20_000)
    mesh.assert_works()


ENDPOINTS = [
    b"tcp://-:1",
    b"tcp://.:1",
    b"tcp://_:1",
    b"tcp://[::]:1",
    b"tcp://[%a]:1",
    b"tcp://[]:1",
    b"tcp://*:1",
    b"tcp://1.2.3.4.5.6:1",
    b"tcp://a..b:1",
    b"tcp://127.0.0.1:99999",
    b"tcp://127.0.0.1:0",
    b"tcp://127.0.0.1;127.0.0.1:1",
    b"ipc:///tmp/x",
    b"inproc://x",
    b"",
    b"\xff",
]


@pytest.mark.parametrize("acks", [1, 2], ids=["one socket for all peers", "one for each"])
def test_endpoints_that_cannot_be(tower: str, open_nodes: ExitStack, acks: int) -> None:
    # Towers pass no such beacon on, so this is one that does.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    open_nodes.callback(context.term)
    hears = open_nodes.enter_context(context.socket(zmq.SUB))
    hears.subscribe(b"B")
    says = open_nodes.enter_context(context.socket(zmq.XPUB))
    says.set(zmq.LINGER, 0)
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (hears, says)]
    both = f"{tower},127.0.0.1:{ports[0]}:{ports[1]}"
    with Producer("t", tower=both, acks=acks, close_timeout_s=0) as producer:
        subscribed: set[bytes] = set()

        def is_heard() -> bool:
            hears.poll(0)  # has ZeroMQ send the subscription
            while says.poll(0):
                subscribed.add(says.recv())
            return {b"\1B", b"\1T", b"\1W"} <= subscribed

        wait_until(is_heard)
        for endpoint in ENDPOINTS:
            says.send_multipart([b"B", b"A" * 32, endpoint])
        for frames in ([b"B"], [b"W", b"more"], [b"B", b"", b""], [b"B"] * 5, [b"Bx", b""]):
            says.send_multipart(frames)
        says.send_multipart(encode_tower_beacon(TowerBeacon("LAST", "tcp://127.0.0.1:9")))
        wait_until(lambda: producer._mesh.peers.table.knows("LAST"))
        assert producer.publish_many([]) == 0  # its loop goes on
        assert producer._mesh.invalid_count >= 14


def test_a_tower_fed_with_garbage(tower: str, mesh: Mesh, raw: Callable[..., RawPeer]) -> None:
    chance = random.Random(46)
    for size in range(200):
        frames = [chance.randbytes(chance.randrange(40)) for _ in range(1 + size % 6)]
        mesh.hostile.send_beacon([b"B" + frames[0], *frames[1:]])
        mesh.hostile.send_beacon([b"B", *frames[1:]])
    met = raw()
    met.wait_until_met(mesh.store.address)
    mesh.assert_works()
