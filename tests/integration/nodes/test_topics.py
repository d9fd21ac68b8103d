"""Names, subscriptions and offsets at their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, PartitionFullError, Producer, Reader, Store
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.name_limits import MAX_TOPIC_BYTES
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.messages import (
    UNSOLICITED,
    Fetch,
    Head,
    HeadsQuery,
    HeadsReply,
    HistoryQuery,
    HistoryReply,
    RecordBatchMessage,
    RecordMessage,
)
from dafka_core.storage import Log
from dafka_core.storage.rows import PartitionRow
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address

Produce = Callable[..., Producer]
Consume = Callable[..., Consumer]
Raw = Callable[..., RawPeer]

LONGEST = "é" * (MAX_TOPIC_BYTES // 2) + "x"
PREFIXES = ("é", "é" * 126, LONGEST[:-1], LONGEST)


def next_values(consumer: Consumer, count: int) -> list[bytes | None]:
    found = [consumer.poll(PATIENCE_S) for _ in range(count)]
    return [record.value for record in found if record is not None]


def test_of_topics_that_are_prefixes_of_each_other_each_consumer_gets_its_own(
    produce: Produce, consume: Consume, store: Store
) -> None:
    assert len(LONGEST.encode()) == MAX_TOPIC_BYTES
    producers = [produce(topic) for topic in PREFIXES]
    for start in ("earliest", "latest"):
        consumers = [consume(topic, start=start) for topic in PREFIXES]
        if start == "latest":
            for consumer in consumers:
                wait_until(consumer.positions)
        for number, producer in enumerate(producers):
            producer.publish(b"%s %d" % (start.encode(), number))
            producer.flush(PATIENCE_S)
        for number, consumer in enumerate(consumers):
            assert next_values(consumer, 1) == [b"%s %d" % (start.encode(), number)]
            assert consumer.poll(0.05) is None


def test_unsubscribing_from_a_prefix_leaves_the_longer_topic(
    produce: Produce, consume: Consume, store: Store
) -> None:
    short, long = produce("a"), produce("ab")
    consumer = consume("a", "ab")
    short.publish(b"short")
    long.publish(b"long")
    assert {*next_values(consumer, 2)} == {b"long", b"short"}
    consumer.unsubscribe("a")
    short.publish(b"not any more")
    long.publish(b"longer")
    assert next_values(consumer, 1) == [b"longer"]
    assert consumer.poll(0.05) is None


def test_who_subscribes_again_begins_again_and_leaves_nothing_behind(
    raw: Raw, produce: Produce, consume: Consume, store: Store
) -> None:
    peer = raw()
    producer = produce("t")
    producer.publish_many([b"0", b"1"])
    consumer = consume("t", "t")
    peer.wait_until_subscribed(subscription(Head, "t"))
    assert next_values(consumer, 2) == [b"0", b"1"]
    for _ in range(3):
        consumer.unsubscribe("t")
        consumer.subscribe("t")
        assert next_values(consumer, 2) == [b"0", b"1"]
    producer.publish(b"2")
    assert next_values(consumer, 1) == [b"2"]
    consumer.unsubscribe("t")
    kinds = (RecordMessage, RecordBatchMessage, Head)
    prefixes = [subscription(kind, "t") for kind in kinds]

    def is_left(prefix: bytes) -> bool:
        told = [frame for frame in list(peer.subscribed) if frame[1:] == prefix]
        return told[-1][:1] == b"\1"

    wait_until(lambda: not any(map(is_left, prefixes)), "the subscriptions to be taken back")


@pytest.mark.parametrize(("start", "found"), [("latest", b"3"), ("named", b"1")])
def test_who_subscribes_again_begins_where_it_is_told_to(
    produce: Produce, consume: Consume, store: Store, start: str, found: bytes
) -> None:
    producer = produce("t")
    producer.publish_many([b"0", b"1"])
    producer.flush(PATIENCE_S)
    consumer = consume(start=start if start == "latest" else {"t": {producer.address: 1}})
    for _ in range(3):
        consumer.subscribe("t")
        wait_until(consumer.positions)
        consumer.unsubscribe("t")
    producer.publish(b"2")
    producer.flush(PATIENCE_S)
    consumer.subscribe("t")
    wait_until(lambda: {end for _, end in consumer.positions().values()} == {3})
    producer.publish(b"3")
    assert next_values(consumer, 1) == [found]


def test_a_peer_that_comes_later_hears_of_more_subscriptions_than_the_high_water_mark(
    raw: Raw, consume: Consume
) -> None:
    # A SUB socket drops those that its peer's queue has no room for (libzmq's issues 2942, 4064).
    topics = [f"topic {number}" for number in range(1_500)]
    consume(*topics, high_water_mark=1_000)
    peer = raw()
    for topic in topics:
        peer.wait_until_subscribed(subscription(RecordMessage, topic))


def test_a_consumer_reads_the_last_record_there_can_be(raw: Raw, consume: Consume) -> None:
    peer = raw(subscription(Fetch))
    tp = TopicPartition("t", peer.address)
    consumer = consume("t", start={"t": {peer.address: MAX_SEQUENCE}})
    peer.wait_until_subscribed(subscription(RecordMessage, "t"))
    peer.send(Head("t", peer.address, MAX_SEQUENCE))
    (fetch,) = peer.wait_for(Fetch)
    assert (fetch.sequence, fetch.end) == (MAX_SEQUENCE, 2**63 - 1)
    peer.send(RecordMessage("t", peer.address, MAX_SEQUENCE, b"last"))
    assert next_values(consumer, 1) == [b"last"]
    assert consumer.positions() == {tp: (2**63 - 1, 2**63 - 1)}


@pytest.mark.parametrize("how", ["publish", "publish_many"])
def test_a_producer_publishes_the_last_record_there_can_be_and_no_more(
    raw: Raw, produce: Produce, how: str
) -> None:
    address = new_address()
    peer = raw(*(subscription(kind) for kind in (HeadsQuery, HistoryQuery, RecordMessage, Head)))
    made: list[Any] = []

    def answers() -> bool:
        for query in peer.messages(HeadsQuery):
            reply = (PartitionInfo("t", address, 0, MAX_SEQUENCE),)
            to = query.requestor
            peer.send(HeadsReply(to, UNSOLICITED, peer.address, 0, 1, ()))
            peer.send(HeadsReply(to, query.query, peer.address, 0, 1, reply))
        for asked in peer.messages(HistoryQuery):
            end, store = MAX_SEQUENCE, peer.address
            of = (store, "t", address, end, asked.life, ())
            peer.send(HistoryReply(asked.requestor, asked.query, *of))
        return bool(made)

    with _in_background(lambda: made.append(produce("t", address=address))):
        wait_until(answers, "the producer to resume")
    (producer,) = made
    beyond = producer.publish if how == "publish" else lambda value: producer.publish_many([value])
    with pytest.raises(PartitionFullError, match=f"{address}.* 9223372036854775807 "):
        producer.publish_many([b"last", b"beyond"])
    assert producer.publish(b"last") == MAX_SEQUENCE
    with pytest.raises(PartitionFullError):
        beyond(b"beyond")
    (record,) = peer.wait_for(RecordMessage)
    assert (record.sequence, record.value) == (MAX_SEQUENCE, b"last")
    peer.wait_for(Head)


def test_a_store_keeps_and_serves_the_last_record_there_can_be(
    tower: str, tmp_path: Path, produce: Produce, consume: Consume, read: Callable[..., Reader]
) -> None:
    tp = TopicPartition(LONGEST, new_address())
    first = MAX_SEQUENCE - 9
    with Log(tmp_path) as log:
        # As if all before had been trimmed.
        row = PartitionRow(0, first, first, 0)
        log._env.write(lambda tables: tables.put_row(tp, row._replace(id=tables.new_id())))
        log.append([RecordBatch.of(tp, first, [b"before"] * 5)])
    with Store(tmp_path, tower=tower) as store:
        producer = produce(LONGEST, address=tp.partition)
        assert producer.publish(b"next") == first + 5
        producer.publish_many([b"last"] * 4)
        producer.flush(PATIENCE_S)
        with pytest.raises(PartitionFullError):
            producer.publish(b"beyond")
        consumer = consume(LONGEST, start={LONGEST: {tp.partition: first}})
        values = [b"before"] * 5 + [b"next"] + [b"last"] * 4
        assert next_values(consumer, 10) == values
        assert consumer.positions() == {tp: (2**63 - 1, 2**63 - 1)}
        (held,) = read().partitions([LONGEST], timeout_s=PATIENCE_S)
        assert (held.earliest, held.end) == (first, 2**63 - 1)
        with StoreClient(StoreLocation(store.address, store.locations)) as client:
            parts = client.read(
                tp, first, 2**63 - 1, times=True, max_records=4, max_bytes=99, timeout_s=PATIENCE_S
            )
            found = [value for part in parts for value in part.values.to_list()]
        assert found == values


@contextmanager
def _in_background(do: Callable[[], object]) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(do)
        yield
        done.result(PATIENCE_S)
