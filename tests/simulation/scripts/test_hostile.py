"""Peers that send anything: it is counted and dropped, and valid traffic continues."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dafka_core.config.node_options import LAYOUTS
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import encode, subscription
from tests.simulation.scripts.script import Script

TP = TopicPartition("t", "P")
PACKED_ONE = bytes([1, 0, 0, 0]) + b"x"
HUGE = 2**63 - 2


class Mesh:
    """One node of each kind, and a hostile peer connected to each."""

    def __init__(self, world: Script) -> None:
        self.world = world
        self.store, self.consumer = world.store(), world.consumer("t")
        self.producer, self.reader = world.producer("t"), world.reader()
        self.peer = world.peer()
        self.peer.wait_until_subscribed(
            subscription(m.ConsumerHello, self.store.address),
            subscription(m.Ack, self.producer.address),
            subscription(m.RecordBatchMessage, "t"),
            subscription(m.TimesReply, self.reader.address),
        )
        # The checkers do not know its records.
        world.checkers.liars.update(("P", "P2", *(f"P{number}" for number in range(1_000))))

    def invalid_count(self) -> int:
        nodes = (self.store, self.consumer, self.producer, self.reader)
        return sum(node.mesh.invalid_count for node in nodes)

    def everything(self) -> Iterator[m.Message]:
        """Every message that some node of these processes."""
        partition, store = self.producer.address, self.store.address
        yield m.RecordMessage(*TP, 0, b"x")
        yield m.RecordBatchMessage(*TP, 0, 1, PACKED_ONE)
        for requestor in (store, self.consumer.address, self.reader.address):
            yield m.DirectRecord(requestor, *TP, 0, b"x")
            yield m.DirectRecordBatch(requestor, *TP, 0, 1, PACKED_ONE)
            yield m.DirectHead(requestor, *TP, 0)
            yield m.StoreHello(requestor, "S")
        yield m.Fetch(partition, "R", "t", 0, 10)
        yield m.Ack(partition, "t", 0)
        yield m.Head(*TP, 0)
        yield m.GetHeads("t", "R")
        yield m.ConsumerHello(store, "R", ("t",))
        yield m.HeadsQuery("R", 1, ("t",))
        yield m.TimesQuery("R", 1, "t", partition, 0, 1)
        yield m.HeadsReply(self.reader.address, 1, "S", 0, 1, (PartitionInfo(*TP, 0, 1),))
        yield m.TimesReply(self.reader.address, 1, "S", 0, 1, ((0, 1),))

    def assert_works(self) -> None:
        """A record passes from the producer through all others."""
        tp, end = self.producer.tp, self.producer.role.next_offset + 1
        self.producer.publish()
        self.world.until(lambda: self.store.held(tp) == (0, end), "it is stored")
        self.world.until(lambda: len(self.consumer.values(tp)) == end, "it is delivered")
        assert self.reader.read(tp, end - 1, end) == [b"%d" % (end - 1)]


@pytest.fixture
def mesh(world: Script) -> Mesh:
    mesh = Mesh(world)
    mesh.assert_works()
    return mesh


def spoiled(frames: list[bytes], chance: random.Random) -> Iterator[list[bytes]]:
    """Forms of a message on its way: cut, flipped, with a frame too many or too few."""
    header = frames[0]
    # The subscribed prefix stays whole, else the garbage would not reach nodes.
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
    yield from ([*frames, b"surplus"], [*frames, b"", b"", b"", b""], [header, header])
    yield from ([header[:1]], [header[: topic_end + 1]], [header + bytes(8_000)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_spoiled_messages_are_counted_and_dropped(mesh: Mesh, layout: str) -> None:
    chance, sent = random.Random(46), 0
    for message in mesh.everything():
        for frames in spoiled(encode(message, layout), chance):
            mesh.peer.send_frames(frames)
            sent += 1
    mesh.assert_works()
    assert mesh.invalid_count() > sent // 4 > 75


def test_forged_heads_and_unrequested_records_stop_nothing(mesh: Mesh) -> None:
    nodes = (mesh.store.address, mesh.consumer.address, mesh.reader.address)
    mesh.peer.subscribe(subscription(m.Fetch))
    for partition in ("P2", mesh.producer.address):
        mesh.peer.send(m.Head("t", partition, HUGE))
        mesh.peer.send(*(m.DirectHead(each, "t", partition, HUGE) for each in nodes))
    mesh.peer.send(m.RecordMessage("t", "P2", HUGE, b"the last there can be"))
    for requestor in nodes:
        for sequence in (0, 5, 1_000_000, HUGE):
            mesh.peer.send(m.DirectRecord(requestor, *TP, sequence, b"unrequested"))
            mesh.peer.send(m.DirectRecord(requestor, "unknown topic", "P", sequence, b"x"))
    mesh.world.until(lambda: ("t", "P2") in mesh.consumer.role.positions())
    mesh.assert_works()
    mesh.assert_works()
    assert mesh.store.held(TopicPartition("t", "P2")) == (0, 0)
    assert mesh.store.held(TP) == (0, 1)
