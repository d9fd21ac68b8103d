"""A store answers from its log what it is asked, publishes what is committed, serves no damage."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from dafka_core import Consumer, FetchTimeoutError, Producer, Reader, Store
from dafka_core.errors import FencedError, OffsetConflictError, StoreError
from dafka_core.model.log_entries import Commit, LogEntry
from dafka_core.model.records import PartitionInfo, RecordBatch, StagedTransaction, TopicPartition
from dafka_core.nodes import store_loop
from dafka_core.nodes.store_loop import LogWriter, Outcomes
from dafka_core.protocol import store_requests
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    DirectRecordBatches,
    Fetch,
    FetchBatch,
    GetHeads,
    Head,
    HeadsReply,
    Message,
    RecordMessage,
    TimesReply,
)
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer
from tests.integration.nodes.staging import TOPIC, client_of, put, write
from tests.integration.nodes.staging import TP as STAGING_TP
from tests.integration.storage.limits import break_heads


def ours(raw: Callable[..., RawPeer]) -> RawPeer:
    """A peer that a store greets when it is told of all that the peer subscribes to."""
    peer = raw()
    for kind in (DirectRecordBatches, DirectRecordBatch, HeadsReply, TimesReply):
        peer.subscribe(subscription(kind, peer.address))
    return peer


def test_it_answers_get_heads_hello_and_fetch(tower: str, store: Store, peer: RawPeer) -> None:
    # Their producers are gone when the store is asked: they would answer, too.
    with Producer("a", tower=tower) as a, Producer("b", tower=tower) as b:
        a.publish_many(values(10))
        b.publish_many(values(10))
    head_a = DirectHead(peer.address, "a", a.address, 9)
    head_b = DirectHead(peer.address, "b", b.address, 9)
    peer.send(GetHeads("a", peer.address))
    assert peer.wait_for(DirectHead) == [head_a]
    peer.send(GetHeads("", peer.address))  # as C stores ask: for all topics
    assert peer.wait_for(DirectHead, 3)[1:] == [head_a, head_b]
    peer.forget_heard()
    peer.send(ConsumerHello(store.address, peer.address, ("b", "unknown")))
    assert peer.wait_for(DirectHead) == [head_b]
    for sequence, count, numbers in ((3, 4, range(3, 7)), (8, 100_000, (8, 9)), (0, 1, (0,))):
        peer.forget_heard()
        peer.send(Fetch(a.address, peer.address, "a", sequence, count))
        expected = [DirectRecord(peer.address, "a", a.address, n, b"%d" % n) for n in numbers]
        assert peer.wait_for(DirectRecord, len(expected)) == expected


def test_more_partitions_than_are_asked_for_at_once(
    tower: str, tmp_path: Path, consume: Callable[..., Consumer]
) -> None:
    count = 5_000
    tps = [TopicPartition("t", f"{number:032X}") for number in range(count)]
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(tp, 0, [tp.partition.encode()]) for tp in tps])
    with Store(tmp_path, tower=tower):
        consumer = consume("t")
        found = [consumer.poll(PATIENCE_S) for _ in range(count)]
        assert {record.value for record in found if record} == {tp[1].encode() for tp in tps}


def test_heads_are_told_a_message_full_at_a_time(
    store: Store, peer: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_requests, "MAX_REPLY_ENTRIES", 3)
    tps = [TopicPartition(topic, f"P{i}") for topic in ("t", "u") for i in range(6)]
    for tp in tps:
        store.append_queue.put(RecordBatch.of(tp, 0, [b"value"])).result(PATIENCE_S)
    asked: list[tuple[Message, list[TopicPartition]]] = [
        (GetHeads("t", peer.address), tps[:6]),
        (GetHeads("", peer.address), tps),
        (ConsumerHello(store.address, peer.address, ("u", "unknown", "t")), tps[6:] + tps[:6]),
    ]
    for message, expected in asked:
        peer.forget_heard()
        peer.send(message)
        assert [head.tp for head in peer.wait_for(DirectHead, len(expected))] == expected


def test_a_fetch_batch_is_answered_in_few_messages(
    tower: str, tmp_path: Path, raw: Callable[..., RawPeer]
) -> None:
    large = [bytes(300_000)] * 3
    held = {
        "A": [b"a0", b"a1"],
        "B": large,
        **{f"P{i}": [b"%d" % i] for i in range(2 * store_loop.SERVE_REQUESTS)},
    }
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(TopicPartition("t", p), 0, held[p]) for p in held])
        log.trim(TopicPartition("t", "P0"), 1)
    peer = ours(raw)
    with Store(tmp_path, tower=tower) as store:
        peer.wait_until_subscribed(subscription(FetchBatch, store.address))
        peer.wait_for(HeadsReply)
        entries = [PartitionInfo("t", p, 0, len(held[p])) for p in held]
        wanted = (*entries, PartitionInfo("t", "unknown", 0, 1))
        peer.send(FetchBatch(store.address, peer.address, wanted))
        peer.wait_for(DirectRecordBatch, 2)  # B, which is too large to go with others
        wait_until(lambda: "P511" in str(peer.messages(DirectRecordBatches)), "the last one")
        messages = peer.messages(DirectRecordBatches)
    batches = [batch for message in messages for batch in message.batches()]
    found = {batch.partition: batch.values.to_list() for batch in batches}
    assert found == {p: held[p] for p in held if p not in ("B", "P0")}
    assert len(batches) == len(found)
    assert len(messages) == 3
    packed = peer.messages(DirectRecordBatch)
    assert sum(message.count for message in packed) == 3


def test_a_fetch_batch_leaves_damage_out(
    tower: str, tmp_path: Path, raw: Callable[..., RawPeer], caplog: pytest.LogCaptureFixture
) -> None:
    with Log(tmp_path) as log:
        for partition, value in (("bad", b"<needle>"), ("good", b"good")):
            log.append([RecordBatch.of(TopicPartition("t", partition), 0, [value])])
    data = tmp_path / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"<needle>", b"<NEEDLE>"))
    peer = ours(raw)
    with caplog.at_level(logging.ERROR, "dafka.store"), Store(tmp_path, tower=tower) as store:
        peer.wait_until_subscribed(subscription(FetchBatch, store.address))
        peer.wait_for(HeadsReply)
        wanted = tuple(PartitionInfo("t", partition, 0, 1) for partition in ("bad", "good"))
        peer.send(FetchBatch(store.address, peer.address, wanted))
        (message,) = peer.wait_for(DirectRecordBatches)
    assert [batch.values.to_list() for batch in message.batches()] == [[b"good"]]
    assert "topic 't', partition bad" in caplog.text


def test_a_long_fetch_is_answered_in_turns_with_others(
    store: Store, peer: RawPeer, produce: Callable[..., Producer]
) -> None:
    producer = produce("t")
    producer.publish_many(values(50_000))
    producer.flush(PATIENCE_S)
    peer.send(Fetch(producer.address, peer.address, "t", 0, 100_000))
    peer.send(GetHeads("t", peer.address))
    records = peer.wait_for(DirectRecord, 50_000)
    assert [record.value for record in records] == values(50_000)
    kinds = [frames[0][:1] for frames in peer.heard]
    assert kinds.index(b"E") < len(kinds) - 1


def test_who_fetches_a_block_hears_that_the_partition_goes_on(store: Store, peer: RawPeer) -> None:
    """C nodes ask for no more than 100,000 records before they hear of a head again."""
    for sequence, value in enumerate(values(100)):
        peer.send(RecordMessage("t", peer.address, sequence, value))
    wait_until(lambda: Ack(peer.address, "t", 99) in peer.messages(Ack))
    peer.forget_heard()
    peer.send(Fetch(peer.address, peer.address, "t", 0, 10))
    assert peer.wait_for(DirectHead) == [DirectHead(peer.address, "t", peer.address, 99)]
    assert [record.sequence for record in peer.messages(DirectRecord)] == list(range(10))
    peer.forget_heard()
    peer.send(Fetch(peer.address, peer.address, "t", 10, 90))
    peer.wait_for(DirectRecord, 90)
    assert peer.messages(DirectHead) == []  # that was all


def test_a_c_store_that_comes_late_hears_of_heads(
    store: Store, produce: Callable[..., Producer], raw: Callable[..., RawPeer]
) -> None:
    """It asks no node: it waits for a HEAD, and the producers that would publish one are gone."""
    with produce("t") as producer:
        producer.publish_many(values(100))
        producer.flush(PATIENCE_S)
    late = raw(subscription(Head))
    assert late.wait_for(Head)[0] == Head("t", producer.address, 99)


def test_consumers_get_what_is_committed(
    store: Store, consume: Callable[..., Consumer], read: Callable[..., Reader]
) -> None:
    live = consume(TOPIC)
    with client_of(store) as client:
        write(client, 0, 20_000, 1)
        put(client, 20_000, 20_100)
        write(client, 20_100, 20_200, 2)
    assert [record.value for record in islice(live, 20_200)] == values(20_200)
    late = consume(TOPIC, start="earliest")
    assert [record.value for record in islice(late, 20_200)] == values(20_200)
    batches = read().read(STAGING_TP, 10, 20_150, timeout_s=PATIENCE_S)
    assert [value for batch in batches for value in batch.values] == values(20_140, 10)


def test_a_damaged_block_is_named_and_never_served(
    tower: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path, tower=tower):
        with Producer("bad", tower=tower) as bad:
            bad.publish_many([b"<needle>"] * 1_000)
        with Producer("good", tower=tower) as good:
            good.publish_many(values(1_000))
    data = tmp_path / "data.mdb"
    whole = data.read_bytes()
    assert b"<needle>" in whole
    data.write_bytes(whole.replace(b"<needle>", b"<NEEDLE>"))
    with (
        caplog.at_level(logging.ERROR, "dafka.store"),
        Store(tmp_path, tower=tower),
        Reader(tower=tower) as reader,
    ):
        with pytest.raises(FetchTimeoutError):
            list(reader.read(TopicPartition("bad", bad.address), 0, 1_000, timeout_s=0.5))
        batches = reader.read(TopicPartition("good", good.address), 0, 1_000, timeout_s=PATIENCE_S)
        assert [value for batch in batches for value in batch.values] == values(1_000)
    assert f"topic 'bad', partition {bad.address}" in caplog.text
    assert "damaged" in caplog.text


TP = TopicPartition("t", "p")


class Told(NamedTuple):
    """What is told of a group, by which thread, and how far the log goes by then."""

    entries: list[LogEntry]
    outcomes: Outcomes | BaseException
    thread: str
    end: int


class Writing:
    """A log that writes while its gate is open, and a writer of it."""

    def __init__(self, directory: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.log = Log(directory, clock_us=self._clock_us)
        self.told: SimpleQueue[Told] = SimpleQueue()
        self.writer = LogWriter(self.log, self._done)

    def _clock_us(self) -> int:
        assert self.gate.wait(PATIENCE_S)
        return time.time_ns() // 1000

    def _done(self, entries: list[LogEntry], outcomes: Outcomes | BaseException) -> None:
        thread = threading.current_thread().name
        self.told.put(Told(entries, outcomes, thread, self.log.end(TP)))

    def close(self) -> None:
        self.gate.set()
        self.writer.close()
        self.log.close()


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    made = Writing(tmp_path)
    yield made
    made.close()


def batch_of(start: int, end: int) -> RecordBatch:
    return RecordBatch.of(TP, start, [b"%d" % number for number in range(start, end)])


def test_a_group_is_on_disk_when_it_is_said_to_be(writing: Writing) -> None:
    never_staged = Commit((StagedTransaction(*TP, "A" * 32, 0, 1, 0),))
    for start in range(0, 50, 10):
        entries: list[LogEntry] = [batch_of(start, start + 5), never_staged]
        entries.append(batch_of(start + 5, start + 10))
        writing.writer.write(entries)
        told = writing.told.get(timeout=PATIENCE_S)
        assert told.entries is entries
        assert (told.thread, told.end) == ("dafka-log-writer", start + 10)
        assert isinstance(told.outcomes, list)
        first, refused, last = told.outcomes
        assert first is last is None
        assert isinstance(refused, FencedError)


def test_it_is_busy_until_a_group_is_on_disk(writing: Writing) -> None:
    before = writing.writer.busy
    writing.gate.clear()
    writing.writer.write([batch_of(0, 10)])
    assert (before, writing.writer.busy) == (False, True)
    with pytest.raises(AssertionError):
        writing.writer.write([batch_of(10, 20)])
    assert writing.told.empty()
    writing.gate.set()
    wait_until(lambda: not writing.writer.busy)
    assert writing.log.end(TP) == 10


def test_closing_waits_for_the_group_on_its_way(writing: Writing) -> None:
    writing.gate.clear()
    writing.writer.write([batch_of(0, 10)])
    closing = threading.Thread(target=writing.writer.close)
    closing.start()
    assert writing.told.empty()
    writing.gate.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert writing.told.get(block=False).end == 10


def test_after_an_error_no_group_is_written(writing: Writing) -> None:
    entries: list[LogEntry] = [batch_of(0, 10), batch_of(11, 12)]
    writing.writer.write(entries)
    told = writing.told.get(timeout=PATIENCE_S)
    assert told.entries is entries
    assert isinstance(told.outcomes, OffsetConflictError)
    assert told.end == 0
    # It never becomes free again, so that nobody gives it another one.
    assert writing.writer.busy
    writing.writer.close()
    assert writing.told.empty()


def test_it_tells_that_the_directory_is_gone_when_there_is_nothing_to_write(
    writing: Writing,
) -> None:
    shutil.rmtree(writing.log.directory)
    told = writing.told.get(timeout=PATIENCE_S)
    assert told.entries == []
    assert isinstance(told.outcomes, StoreError)


def test_it_tells_that_nothing_can_be_read_when_there_is_nothing_to_write(tmp_path: Path) -> None:
    """After a write that was not its own."""
    told: SimpleQueue[Outcomes | BaseException] = SimpleQueue()
    with Log(tmp_path) as log:
        log.append([batch_of(0, 10)])
        with closing(LogWriter(log, lambda _, outcomes: told.put(outcomes))):
            break_heads(log)
            with pytest.raises(StoreError, match="the disk is full or fails"):
                log.trim(TP, 5)
            with pytest.raises(StoreError, match="an earlier write failed halfway"):
                log.end(TP)
            assert "restart the store" in str(told.get(timeout=PATIENCE_S))
    with Log(tmp_path) as log:
        assert log.end(TP) == 10
