"""Records that clients put into a store, and the requests of peers that it answers."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from dafka_core.errors import OffsetConflictError
from dafka_core.model.log_entries import NotedBatch, Notes
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes import store_loop
from dafka_core.protocol import messages as m
from dafka_core.protocol import store_requests
from dafka_core.protocol.codec import subscription
from tests.simulation.scripts.script import Peer, Script, ScriptedStore, tp_of, values

TP = tp_of("p")


@pytest.fixture
def store(world: Script) -> ScriptedStore:
    return world.store()


@pytest.fixture
def peer(world: Script, store: ScriptedStore) -> Peer:
    """A C producer and consumer in one, connected to the store in both directions."""
    peer = world.peer(subscription(m.Fetch), subscription(m.Head), subscription(m.RecordMessage))
    kinds = (m.Ack, m.DirectHead, m.DirectRecord, m.StoreHello)
    peer.subscribe(*(subscription(kind, peer.address) for kind in kinds))
    peer.wait_until_subscribed(subscription(m.ConsumerHello, store.address), subscription(m.Fetch))
    peer.wait_for(m.StoreHello)
    return peer


def ours(world: Script, store: ScriptedStore) -> Peer:
    """A peer that a store greets when it has subscribed to everything."""
    peer = world.peer(name="ours")
    kinds = (m.DirectRecordBatches, m.DirectRecordBatch, m.HeadsReply, m.TimesReply)
    peer.subscribe(*(subscription(kind, peer.address) for kind in kinds))
    peer.wait_until_subscribed(subscription(m.FetchBatch, store.address))
    peer.wait_for(m.HeadsReply)
    return peer


def conflict(world: Script, store: ScriptedStore, offset: int) -> tuple[int, int]:
    """Offset and end in the error of a put."""
    with pytest.raises(OffsetConflictError) as caught:
        store.append(TP, offset, 3)
    return caught.value.offset, caught.value.end


def test_records_that_are_put_reach_consumers_readers_and_stores(
    world: Script, store: ScriptedStore
) -> None:
    consumer = world.consumer("t")
    assert store.append(TP, 0, 1_000) == 1_000
    other = world.store("other")
    assert store.append(TP, 1_000, 1_000) == 2_000
    consumer.wait_for(*values(2_000))
    assert world.reader().read(TP, 50, 1_500) == values(1_450, 50)
    world.until(lambda: other.held(TP) == (0, 2_000))
    # The writer continues at the other store, and the first one follows.
    assert other.append(TP, 2_000, 10) == 2_010
    world.until(lambda: store.held(TP) == (0, 2_010))
    assert store.values(TP) == other.values(TP) == values(2_010)
    assert [conflict(world, store, at) for at in (0, 2_009, 2_011)] == [
        (0, 2_010),
        (2_009, 2_010),
        (2_011, 2_010),
    ]


def test_a_writer_publishes_as_a_producer_and_puts_again(
    world: Script, store: ScriptedStore
) -> None:
    tp = TopicPartition("t", tp_of("producer").partition)
    store.append(tp, 0, 10)
    producer = world.producer("t", resume=True)
    producer.publish(10)
    producer.flush()
    producer.stop()
    assert store.append(tp, 20, 10) == 30
    assert store.values(tp) == values(30)


def test_notes_are_written_with_an_accepted_batch_only(world: Script, store: ScriptedStore) -> None:
    def batch(offset: int, notes: Notes) -> NotedBatch:
        return NotedBatch(TP, offset, Values.of(values(2)), notes=notes)

    kept = [store.submit(batch(2 * at, {"a": b"%d" % at, f"b{at}": b""})) for at in range(20)]
    late = [store.submit(batch(offset, {"a": b"lost"})) for offset in (0, 39, 1_000)]
    kept.append(store.submit(batch(40, {"b0": None})))
    assert [world.result(each) for each in kept] == [*range(2, 44, 2)]
    assert all(isinstance(each.exception(), OffsetConflictError) for each in late)
    assert store.log.notes("a") == {"a": b"19"}
    assert store.log.notes("b") == {f"b{at}": b"" for at in range(1, 20)}
    for notes in ({"n" * 481: b""}, {"n": bytes(4097)}, {str(at): b"" for at in range(10_001)}):
        with pytest.raises(ValueError, match="note"):
            batch(42, notes)


def test_puts_that_never_reach_the_log_fail_and_can_be_repeated(
    world: Script, store: ScriptedStore
) -> None:
    """The log refuses an earlier batch, so the role drops those that follow it."""
    first, second = (
        store.submit(RecordBatch.of(TP, at, values(count, at))) for at, count in ((0, 10), (10, 5))
    )
    other = store.submit(RecordBatch.of(TP._replace(topic="u"), 0, values(3)))
    refused = RecordBatch.of(TP, 0, values(10))
    store.call(lambda now: store.role.on_stored([refused], [OffsetConflictError(*TP, 0, 0)]))
    for put, offset in ((first, 0), (second, 10)):
        with pytest.raises(OffsetConflictError) as caught:
            world.result(put)
        assert (caught.value.offset, caught.value.end) == (offset, 0)
    assert world.result(other) == 3
    assert store.append(TP, 0, 10) == 10
    assert store.values(TP) == values(10)


def test_a_c_node_receives_records_one_by_one_and_heads(
    world: Script, store: ScriptedStore, peer: Peer
) -> None:
    store.append(TP, 0, 50)
    peer.send(m.ConsumerHello(store.address, peer.address, ("t", "unknown")))
    assert peer.wait_for(m.DirectHead) == [m.DirectHead(peer.address, *TP, 49)]
    peer.received.clear()
    store.append(TP, 50, 50)
    live = peer.wait_for(m.RecordMessage, 50)
    assert [(each.sequence, each.value) for each in live] == [*enumerate(values(50, 50), 50)]
    assert peer.messages(m.RecordBatchMessage) == []
    head = m.Head(*TP, 99)
    assert peer.wait_for(m.Head, 3)[-2:] == [head] * 2  # it is repeated
    late = world.peer(subscription(m.Head), name="late")
    assert late.wait_for(m.Head)[0] == head


@pytest.mark.parametrize("most", [2, 8_192])
def test_a_store_answers_get_heads_hello_and_fetch(
    world: Script, store: ScriptedStore, peer: Peer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """With any limit of entries in an answer, or records in a round."""
    monkeypatch.setattr(store_requests, "MAX_REPLY_ENTRIES", most)
    monkeypatch.setattr(store_loop, "SERVE_COUNT", most)
    tps = [TopicPartition(topic, f"P{i}") for topic in ("t", "u") for i in range(6)]
    for tp in tps:
        store.append(tp, 0, 10)
    asked: list[tuple[m.Message, list[TopicPartition]]] = [
        (m.GetHeads("t", peer.address), tps[:6]),
        (m.GetHeads("", peer.address), tps),  # as C stores ask: for all topics
        (m.ConsumerHello(store.address, peer.address, ("u", "none", "t")), tps[6:] + tps[:6]),
    ]
    for message, expected in asked:
        peer.received.clear()
        peer.send(message)
        heads = peer.wait_for(m.DirectHead, len(expected))
        assert heads == [m.DirectHead(peer.address, *tp, 9) for tp in expected]
    for sequence, count, numbers in ((3, 4, range(3, 7)), (8, 100_000, (8, 9)), (0, 1, (0,))):
        peer.received.clear()
        peer.send(m.Fetch(peer.address, "t", "P1", sequence, count))
        peer.send(m.GetHeads("t", peer.address))
        found = peer.wait_for(m.DirectRecord, len(numbers))
        assert found == [m.DirectRecord(peer.address, *tps[1], n, b"%d" % n) for n in numbers]


@pytest.mark.parametrize(("count", "next_heads"), [(11, 0), (10, 1)])
def test_a_requestor_of_a_part_receives_the_next_head(
    world: Script, store: ScriptedStore, peer: Peer, count: int, next_heads: int
) -> None:
    """C nodes fetch the next block when they receive a head again."""
    store.append(TP, 0, 11)
    peer.received.clear()
    peer.send(m.Fetch(peer.address, *TP, 0, count))
    peer.wait_for(m.DirectRecord, count)
    world.run(0.1)
    assert peer.messages(m.DirectHead) == [m.DirectHead(peer.address, *TP, 10)] * next_heads


def test_a_fetch_batch_is_answered_in_few_messages(world: Script) -> None:
    held = {
        "A": [b"a0", b"a1"],
        "B": [bytes(300_000)] * 3,
        **{f"P{i}": [b"%d" % i] for i in range(2 * store_loop.SERVE_REQUESTS)},
    }
    with world.log("a") as log:
        log.append([RecordBatch.of(TopicPartition("t", p), 0, held[p]) for p in held])
        log.trim(TopicPartition("t", "P0"), 1)
    world.checkers.liars.update(held)
    store = world.store()
    peer = ours(world, store)
    wanted = [PartitionInfo("t", p, 0, len(held[p])) for p in held]
    wanted.append(PartitionInfo("t", "unknown", 0, 1))
    peer.send(m.FetchBatch(store.address, peer.address, tuple(wanted)))
    packed = peer.wait_for(m.DirectRecordBatch, 2)  # B, which is too large to go with others
    messages = peer.wait_for(m.DirectRecordBatches, 3)
    batches = [batch for message in messages for batch in message.batches()]
    found = {batch.tp.partition: batch.values.to_list() for batch in batches}
    assert found == {p: held[p] for p in held if p not in ("B", "P0")}
    assert len(batches) == len(found)
    assert sum(message.count for message in packed) == 3


def test_damaged_records_are_never_sent(world: Script, caplog: pytest.LogCaptureFixture) -> None:
    with world.log("a") as log:
        for partition, value in (("bad", b"<needle>"), ("good", b"good")):
            log.append([RecordBatch.of(TopicPartition("t", partition), 0, [value])])
    data = world.directory / "a" / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"<needle>", b"<NEEDLE>"))
    world.checkers.liars.update(("bad", "good"))
    with caplog.at_level(logging.ERROR, "dafka.store"):
        store = world.store()
        peer = ours(world, store)
        wanted = tuple(PartitionInfo("t", partition, 0, 1) for partition in ("bad", "good"))
        peer.send(m.FetchBatch(store.address, peer.address, wanted))
        [message] = peer.wait_for(m.DirectRecordBatches)
        assert [batch.values.to_list() for batch in message.batches()] == [[b"good"]]
        reader = world.reader()
        read = reader.role.read(TopicPartition("t", "bad"), 0, 1)
        assert reader.read(TopicPartition("t", "good"), 0, 1) == [b"good"]
        world.run(5)
    assert read.delivered == []
    assert "topic 't', partition bad" in caplog.text


def test_times_of_a_client_are_kept_and_impossible_ones_replaced(
    world: Script, store: ScriptedStore
) -> None:
    """Each store has equal times."""
    other, now_us = world.store("other"), world.now_us()
    given = [[2, 1000], [1, 500], [3, 2000], [1, now_us + 3_700_000_000]]
    for at, (count, wanted) in enumerate(((7, given), (2, [[1, -1000], [1, -(2**62)]]))):
        batch = RecordBatch(TP, 7 * at, Values.of(values(count)), times=np.array(wanted, np.int64))
        world.result(store.submit(batch))
    world.until(lambda: other.held(TP) == (0, 9))
    times = store.log.times(TP, 0, 9)
    assert [each for each in times if each[0] not in (6, 8)] == [
        (0, 1000),
        (2, 500),
        (3, 2000),
        (7, -1000),
    ]
    assert all(0 <= us - now_us < 60_000_000 for at, us in times if at in (6, 8))
    assert other.log.times(TP, 0, 9) == times
