"""Nodes' sockets: records sent, bursts received, connections that are stalled or cut.

The times of connections are shorter here than nodes have them; what the kernel does after them is
the same.
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zmq

from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.config.node_options import C_LAYOUT, LAYOUTS, LIVE_BATCH_BYTES, RFC46
from dafka_core.errors import ProtocolError
from dafka_core.model.envelope import closed
from dafka_core.model.opened_records import opened_records
from dafka_core.model.records import Record, RecordBatch, TopicPartition, Transaction, times_between
from dafka_core.nodes import sockets as module
from dafka_core.nodes.connection_quotas import ConnectionQuotas
from dafka_core.nodes.sockets import (
    BURST_BYTES,
    MIN_BURST_BYTES,
    new_socket,
    receive_burst,
    received,
    send_one_by_one,
    send_packed,
    share_bytes,
)
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import TowerBeacon, encode_tower_beacon
from dafka_core.protocol.codec import SIGNATURE, BulkDecoder, decode, subscription
from dafka_core.protocol.limits import DIRECT_BATCH_BYTES, MAX_BATCH_COUNT
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Dafka
from tests.integration.nodes.conftest import Consume, Produce, Raw
from tests.integration.nodes.connections import Connection, cable_pulled, connections, now
from tests.integration.nodes.content import acknowledged_by, polled
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer
from tests.unit.protocol.vectors import VECTORS

STALLED_MS = 1_000
IDLE_S = 1  # the kernel knows nothing shorter

PADDING = b"." * 20_000

TP = TopicPartition("t", "P")
QUOTAS = ConnectionQuotas(1 << 20, encrypted=False)
MAX_FRAMES = 3
"""Of a valid message; those with more are skipped."""
Ends = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two ends of a connection within the process: what one has sent the other has at once."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PAIR) as near, context.socket(zmq.PAIR) as far:
        for socket in (near, far):
            socket.set_hwm(0)
            socket.set(zmq.LINGER, 0)
        near.bind("inproc://ends")
        far.connect("inproc://ends")
        yield near, far
    context.term()


# -- records that are sent -------------------------------------------------------------------------

SIZES = {
    "a few": [1, 0, 3],
    "one": [5],
    "many small ones": [1] * (MAX_BATCH_COUNT + 1),
    "some that fill messages": [LIVE_BATCH_BYTES // 4] * 9,
    "large ones": [LIVE_BATCH_BYTES + 1, 0, DIRECT_BATCH_BYTES + 1, 7, DIRECT_BATCH_BYTES],
}


def batch_of(sizes: list[int], transaction: Transaction | None = None) -> RecordBatch:
    values = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    return RecordBatch.of(TP, 7, values, transaction)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("requestor", ["", "C"])
@pytest.mark.parametrize("transaction", [None, Transaction(3, 0, 1 << 20)], ids=["none", "one"])
def test_packed_records_take_as_few_messages_as_the_limits_allow(
    ends: Ends, sizes: list[int], requestor: str, transaction: Transaction | None
) -> None:
    near, far = ends
    batch = batch_of(sizes, transaction)
    send_packed(near, OutgoingBatch(batch, requestor))
    limit_bytes = DIRECT_BATCH_BYTES if requestor else LIVE_BATCH_BYTES
    decoder, offset = BulkDecoder(), batch.offset
    for frames in received(far):
        message = decode(frames)
        assert isinstance(message, m.DirectRecordBatch if requestor else m.RecordBatchMessage)
        lengths, records, _ = m.unpack_batch(message.count, message.value, message.runs)
        rest = sizes[offset - batch.offset :]
        assert (message.sequence, lengths.tolist()) == (offset, rest[: message.count])
        assert len(records) <= limit_bytes or message.count == 1
        has_no_room = sum(rest[: message.count + 1]) > limit_bytes
        assert message.count in (len(rest), MAX_BATCH_COUNT) or has_no_room
        offset += message.count
        decoder.add(*frames)
    assert decoder.take() == [(requestor, batch)]


def test_packed_records_have_their_timestamps(ends: Ends) -> None:
    near, far = ends
    sizes = SIZES["a few"]
    times = np.array([(1, 1_000), (1, 2_000), (len(sizes) - 2, 3_000)])
    batch = replace(batch_of(sizes), times=times)
    send_packed(near, OutgoingBatch(batch))
    for part in batch.split(2, 1 << 20):
        send_packed(near, OutgoingBatch(part, "C"))
    decoder = BulkDecoder()
    for frames in received(far):
        decoder.add(*frames)
    [live, direct] = [found for _, found in decoder.take()]
    assert live.times is not None
    assert direct.times is not None
    assert live.times.tolist() == times.tolist()
    assert times_between(direct.times, 0, 2).tolist() == times[:2].tolist()
    assert direct.times[2:, 1].tolist() == [3_000] * (len(direct.times) - 2)


@pytest.mark.parametrize("requestor", ["", "C"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_record_may_be_sent_by_itself(ends: Ends, requestor: str, layout: str) -> None:
    near, far = ends
    batch = batch_of(SIZES["a few"])
    send_one_by_one(near, OutgoingBatch(batch, requestor), layout)
    expected = [
        m.DirectRecord(requestor, *batch.tp, n, value)
        if requestor
        else m.RecordMessage(*batch.tp, n, value)
        for n, value in enumerate(batch.values, batch.offset)
    ]
    assert [decode(frames) for frames in received(far)] == expected


# -- bursts that are received ----------------------------------------------------------------------

Found = tuple[str, Record]


def records_of(frames: list[bytes]) -> list[Found]:
    message = decode(frames)
    if isinstance(message, m.RecordMessage | m.DirectRecord):
        return [(message.requestor, Record(*message.tp, message.sequence, message.value))]
    if not isinstance(message, m.RecordBatchMessage | m.DirectRecordBatch):
        return []
    lengths, records, _ = m.unpack_batch(message.count, message.value, message.runs)
    stops = lengths.cumsum().tolist()
    values = [bytes(records[start:stop]) for start, stop in pairwise([0, *stops])]
    batch = RecordBatch.of(message.tp, message.sequence, values)
    return [(message.requestor, record) for record in opened_records(batch, opens=False)]


def decoded(messages: list[list[bytes]]) -> tuple[list[Found], int]:
    """The records of messages, each decoded by itself, and how many are no messages."""
    found: list[Found] = []
    invalid_count = 0
    for frames in messages:
        try:
            found += records_of(frames)
        except ProtocolError:
            invalid_count += 1
    return found, invalid_count


def test_valid_messages_are_received_whole_and_longer_ones_are_skipped_whole(ends: Ends) -> None:
    """No frame of a message is taken for the beginning of a further message."""
    near, far = ends
    chance = random.Random(46)
    valid = [list(vector.frames) for vector in VECTORS]
    frames = [frame for message in valid for frame in message]
    sent = []
    for _ in range(5_000):
        message = chance.choice(valid)
        surplus = chance.choices(frames, k=chance.choice([0, 0, 1, 2, 9]))
        sent.append([*message[: chance.choice([1, 9, 9])], *surplus])
    for message in sent:
        near.send_multipart(message)
    sent = [message for message in sent if len(message) <= MAX_FRAMES]
    decoder = BulkDecoder()
    bursts = list(iter(lambda: receive_burst(far, decoder, QUOTAS, BURST_BYTES), []))
    others = [frames for burst in bursts for frames in burst]
    found, invalid_count = decoded(others)
    for requestor, batch in decoder.take():
        found += [
            (requestor, record._replace(timestamp_us=None))
            for record in opened_records(batch, opens=False)
        ]
    expected, expected_invalid = decoded(sent)
    assert sorted(found) == sorted(expected)
    assert invalid_count + decoder.invalid_count == expected_invalid
    assert not QUOTAS.unfinished
    assert len(expected) > 500
    assert expected_invalid > 500


def test_all_senders_of_a_round_have_equal_shares() -> None:
    assert share_bytes(0) == share_bytes(1) == BURST_BYTES
    assert 4 * share_bytes(4) == BURST_BYTES
    assert share_bytes(100_000) == MIN_BURST_BYTES


def test_a_burst_ends_so_that_other_sockets_have_their_turn(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = ends
    decoder = BulkDecoder()

    def bursts(
        send: Callable[[zmq.Socket[bytes], OutgoingBatch], None], max_bytes: int = BURST_BYTES
    ) -> list[int]:
        send(near, OutgoingBatch(batch_of([600] * 25)))
        counts = []
        while far.poll(0):
            assert receive_burst(far, decoder, QUOTAS, max_bytes) == []
            counts.append(sum(batch.count for _, batch in decoder.take()))
        return counts

    def send_singles(socket: zmq.Socket[bytes], message: OutgoingBatch) -> None:
        send_one_by_one(socket, message, LAYOUTS[0])

    monkeypatch.setattr(module, "LIVE_BATCH_BYTES", 600)
    for send in (send_singles, send_packed):
        assert bursts(send) == [25]
        with monkeypatch.context() as patch:
            patch.setattr(module, "BURST_COUNT", 10)
            assert bursts(send) == [10, 10, 5]
        # The one that passes the limit is the last one.
        assert bursts(send, 6_000)[:-1] == [11 if send is send_singles else 10] * 2
    monkeypatch.setattr(module, "CONTROL_COUNT", 10)
    for _ in range(25):
        near.send(b"B")
    assert next(received(far)) == [b"B"]
    assert [len(list(received(far))) for _ in range(4)] == [10, 10, 4, 0]


def test_a_frame_above_the_limit_is_refused() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with new_socket(context, zmq.PULL, 100) as pull, new_socket(context, zmq.PUSH, 100) as push:
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
        push.send(bytes(101))

        def comes_through() -> bool:
            """The peer is cut off, and connects anew."""
            push.send(bytes(100))
            return bool(pull.poll(10))

        wait_until(comes_through)
        assert {len(message) for [message] in received(pull)} == {100}
    context.term()


# -- connections that are stalled or cut -----------------------------------------------------------


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_MS", STALLED_MS)
    monkeypatch.setattr(module, "IDLE_S", IDLE_S)


def to_its_peers(producer: Producer) -> list[Connection]:
    """The producer's ends of the connections that it publishes on."""
    return [each for each in connections() if each.port == producer.mesh.beacon.port]


def from_producer(producer: Producer) -> list[Connection]:
    """The other ends of them."""
    return [each for each in connections() if each.peer_port == producer.mesh.beacon.port]


@pytest.mark.usefixtures("_short_times")
def test_a_stopped_consumer_is_cut_off_and_receives_everything_later(
    tower: str, produce: Produce
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
    produce: Produce, consume: Consume
) -> None:
    consumer, producer = consume("t"), produce("t")
    producer.publish(b"before")
    assert polled(consumer) == ("t", producer.address, 0, b"before")
    [ours] = to_its_peers(producer)
    [theirs] = from_producer(producer)
    with cable_pulled(theirs):
        producer.publish(b"lost")
        wait_until(lambda: now(ours) is None, "the producer to let go of the connection")
        # The first question is lost, so that there has to be a second one.
        wait_until(lambda: (each := now(theirs)) and each.unanswered, "an unanswered question")
    wait_until(lambda: now(theirs) is None, "the consumer to find out")
    producer.publish(b"after")
    found = [polled(consumer) for _ in range(2)]
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
        ports = {node.mesh.beacon.port for node in nodes}
        towers = {hub.sub_port, hub.pub_port}

        def ends() -> list[Connection]:
            return [
                each for each in connections() if {each.port, each.peer_port} & (ports | towers)
            ]

        # Two to the tower from each, and one in each direction between all but consumer and reader;
        # each has two ends here.
        count = 2 * (2 * len(nodes) + 2 * 5)
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_have_the_layout_of_the_option(produce: Produce, raw: Raw, layout: str) -> None:
    peer = raw(subscription(m.RecordMessage, "t"), subscription(m.Head, "t"))
    producer = produce("t", wire=layout, head_interval_ms=20)

    def heard() -> bool:
        producer.publish(b"value")
        return bool(peer.messages(m.RecordMessage)) and bool(peer.messages(m.Head))

    wait_until(heard)
    for frames in list(peer.heard):
        rfc46 = len(frames) > 1 and frames[1].startswith(SIGNATURE)
        assert rfc46 == (layout == RFC46)
        assert (frames[0] in (b"Mt", b"Ht")) == (layout == RFC46)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_acknowledgements_of_two_stores_are_distinguished(
    tower: str, tmp_path: Path, layout: str
) -> None:
    # RFC 46 has the store's address in its ACK, in C nodes' layout the connection identifies it.
    with (
        Store(tmp_path / "one", tower=tower, wire=layout) as one,
        Store(tmp_path / "two", tower=tower, wire=C_LAYOUT) as two,
        Producer("t", tower=tower, acks=2) as producer,
    ):
        producer.publish(b"0")
        producer.flush(PATIENCE_S)
        assert acknowledged_by(producer) == {one.address: 1, two.address: 1}


def test_nodes_that_know_no_envelopes_get_them_as_values(
    tower: str, store: Store, produce: Produce
) -> None:
    with RawPeer(tower, b"Mt") as consumer:
        producer = produce("t", wire="rfc46")
        consumer.wait_until_met(producer.address)
        contents = [b"bare", closed(b"v", b"k", [("h", None)]), closed(None, b"k")]
        producer.publish(b"bare")
        producer.publish(b"v", b"k", [("h", None)])
        producer.publish(None, b"k")
        producer.flush(PATIENCE_S)
        live = consumer.wait_for(m.RecordMessage, 3)
        assert [record.value for record in live] == contents
    with Consumer(tower=tower, envelope="none") as other:
        other.subscribe("t")
        records = [other.poll(PATIENCE_S) for _ in contents]
        assert [record and record.value for record in records] == contents


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
            return {b"\1B", b"\1W"} <= subscribed

        wait_until(is_heard)
        for endpoint in ENDPOINTS:
            says.send_multipart([b"B", b"A" * 32, endpoint])
        for frames in ([b"B"], [b"W", b"more"], [b"B", b"", b""], [b"B"] * 5, [b"Bx", b""]):
            says.send_multipart(frames)
        says.send_multipart(encode_tower_beacon(TowerBeacon("LAST", "tcp://127.0.0.1:9")))
        wait_until(lambda: "LAST" in producer.mesh.peers.table.nodes())
        assert producer.publish_many([]) == 0  # its loop still runs
        refused = producer.mesh.traffic.refused
        assert refused["beacon"] >= 14


def test_garbage_is_counted_and_nodes_continue(
    tower: str, store: Store, consume: Consume, raw: Raw
) -> None:
    """Sent to the tower, and to a store and a consumer; the simulator has every kind of it."""
    consumer, hostile = consume("t"), raw()
    hostile.wait_until_subscribed(subscription(m.ConsumerHello, store.address))
    hostile.wait_until_subscribed(subscription(m.RecordBatchMessage, "t"))
    chance = random.Random(46)
    for size in range(200):
        frames = [chance.randbytes(chance.randrange(40)) for _ in range(1 + size % 6)]
        hostile.send_beacon([b"B" + frames[0], *frames[1:]])
        hostile.send_beacon([b"B", *frames[1:]])
        # With more frames the nodes would end the connection, whatever the frames are.
        hostile.send_frames([b"Mt" + frames[0], *frames[1:3]])
    meshes = consumer.mesh, store.mesh
    wait_until(lambda: all(sum(mesh.traffic.refused.values()) >= 50 for mesh in meshes))
    wait_until(lambda: consumer.mesh.traffic.refused["records"] > 0)
    with Producer("t", tower=tower) as producer:
        producer.publish(b"valid")
    wait_until(lambda: polled(consumer) == ("t", producer.address, 0, b"valid"))
