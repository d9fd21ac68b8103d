"""Names, offsets and other arguments: at their limits, odd, or wrong."""

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from dafka_core import (
    ConfigError,
    Consumer,
    EmbeddedCluster,
    PartitionFullError,
    Producer,
    Reader,
    Store,
)
from dafka_core.errors import DafkaError
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.name_limits import MAX_TOPIC_BYTES
from dafka_core.model.names import escape, text_of
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.messages import Ack, RecordMessage
from dafka_core.storage import Log
from dafka_core.storage.rows import PartitionRow
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Consume, Produce, Raw, Read, Start
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address

TP = TopicPartition("t", "A" * 32)
NOBODY = "127.0.0.1:1:2"

WRONG: dict[str, Callable[[Any], object]] = {
    "topic": lambda value: Producer(value, tower=NOBODY),
    "address": lambda value: Producer("t", address=value, tower=NOBODY),
    "directory": lambda value: Store(value, tower=NOBODY),
    "start": lambda value: Consumer(start=value, tower=NOBODY),
    "host": lambda value: Reader(host=value, tower=NOBODY),
    "tower": lambda value: Reader(tower=value),
    "stores": EmbeddedCluster,
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("value", [5.5, b"x", [], {"t": 5}, True, -1])
def test_a_node_is_not_begun(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^option '{name}' = .*: .*must ") as refused:
        WRONG[name](value)
    assert refused.value.option == name


LONG = "x" * 256


@pytest.mark.parametrize(
    ("start", "why"),
    [
        *(({"t": {"P": offset}}, "a sequence must") for offset in (-1, 2**63)),
        *(({"t": {"P": offset}}, "must not be of type") for offset in (True, 1.5, "1", Decimal(5))),
        *(({name: {}}, "a topic .*must") for name in ("", LONG, "a\0b", "\ud800")),
        *(({"t": {name: 0}}, "an address must") for name in ("", LONG, "a\0b")),
        ({5: {}}, "must not be of type int"),
        ({"t": {5: 0}}, "must not be of type int"),
    ],
)
def test_an_invalid_start(start: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"option 'start' = .*: .*{why}"):
        Consumer(start=start, tower=NOBODY)


def test_a_directory_without_a_name() -> None:
    with pytest.raises(ConfigError, match="option 'directory' = '': must name a directory"):
        EmbeddedCluster(directory="")


@pytest.mark.parametrize("offset", ["x", None, -1, 2.5, Decimal(5), True, 10**30])
def test_an_invalid_offset(tower: str, offset: Any) -> None:
    with Consumer(tower=tower) as consumer, Reader(tower=tower) as reader:
        with pytest.raises(ConfigError, match="option 'offset' = "):
            consumer.seek(TP, offset)
        with pytest.raises(ConfigError, match="option 'end' = "):
            next(reader.read(TP, 0, offset, timeout_s=PATIENCE_S))


def test_names_in_the_place_of_lists_and_partitions(tower: str) -> None:
    tp: Any = "flights"
    with Consumer(tower=tower) as consumer, Reader(tower=tower) as reader:
        with pytest.raises(ConfigError, match="option 'topics' = 'flights': must be a list"):
            reader.partitions("flights", timeout_s=PATIENCE_S)
        with pytest.raises(ConfigError, match="option 'tp' = 'flights': must be a TopicPartition"):
            consumer.seek(tp, 0)
        with pytest.raises(ConfigError, match="option 'tp' = 'flights': must be a TopicPartition"):
            next(reader.read(tp, 0, 1, timeout_s=PATIENCE_S))


@pytest.mark.parametrize("name", ["", LONG, "ä" * 128, "a\0b", "\ud800", None, 5, ["t"]])
def test_an_invalid_name_ends_no_consumer(tower: str, name: Any) -> None:
    with Consumer(tower=tower) as consumer:
        for option, call in (
            ("topics", lambda: consumer.held_topics(name, timeout_s=PATIENCE_S)),
            ("topic", lambda: consumer.subscribe(name)),
            ("topic", lambda: consumer.unsubscribe(name)),
            ("topic", lambda: consumer.seek(TopicPartition(name, "P"), 0)),
            ("partition", lambda: consumer.seek(TopicPartition("t", name), 0)),
        ):
            with pytest.raises(ConfigError, match=f"option '{option}' = "):
                call()
        consumer.subscribe("t")
        assert consumer.subscription == ["t"]


def test_too_many_topics_end_no_reader(tower: str) -> None:
    topics = [f"{number:0200}" for number in range(3_000)]
    with Reader(tower=tower) as reader:
        with pytest.raises(ConfigError, match="a message's topics have at most 524288 bytes"):
            reader.partitions(topics, timeout_s=PATIENCE_S)
        reader.mesh.check()


@pytest.mark.parametrize("forever_s", [math.inf, 1e300])
def test_a_wait_may_be_for_ever(tower: str, forever_s: float) -> None:
    with Consumer(tower=tower) as consumer:
        consumer.subscribe("t")
        with Producer("t", tower=tower, close_timeout_s=0) as producer:
            producer.publish(b"x")
            record = consumer.poll(forever_s)
            assert record is not None
            with pytest.raises(Exception, match="1 records are not acknowledged"):
                producer.close()


LONGEST = "é" * (MAX_TOPIC_BYTES // 2) + "x"


def next_values(consumer: Consumer, count: int) -> list[bytes | None]:
    found = [consumer.poll(PATIENCE_S) for _ in range(count)]
    return [record.value for record in found if record is not None]


def test_a_late_peer_receives_more_subscriptions_than_the_high_water_mark(
    raw: Raw, consume: Consume
) -> None:
    # A SUB socket drops those that its peer's queue has no room for (libzmq's issues 2942, 4064).
    topics = [f"topic {number}" for number in range(1_500)]
    consume(*topics, high_water_mark=1_000)
    peer = raw()
    for topic in topics:
        peer.wait_until_subscribed(subscription(RecordMessage, topic))


def test_a_store_keeps_and_serves_the_last_record_there_can_be(
    tower: str, tmp_path: Path, produce: Produce, consume: Consume, read: Read
) -> None:
    tp = TopicPartition(LONGEST, new_address())
    first = MAX_SEQUENCE - 9
    with Log(tmp_path) as log:
        # As if all before had been trimmed.
        row = PartitionRow(tp, 0, first, first, 0, 0)
        log._env.write(lambda tables: tables.put_row(row._replace(id=tables.new_id())))
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


ODD = [
    text_of(octets)
    for octets in (
        b"bad\xff",
        b"new\nline",
        b"tab\tand\r",
        b"\x1b[31mred",
        rb"a\xff",
        b"\xff" * 255,
        bytes(range(1, 256)),
        "é\u2028".encode(),
    )
]


def send(peer: RawPeer, names: list[TopicPartition]) -> None:
    """A record in each partition, as a C producer publishes it."""
    for topic, partition in names:
        peer.send(RecordMessage(topic, partition, 0, escape(topic).encode()))


@pytest.fixture
def odd(peer: RawPeer) -> list[TopicPartition]:
    """Partitions with odd topics that a C producer has published to; a store has them."""
    found = [TopicPartition(topic, peer.address) for topic in ODD]
    send(peer, found)
    wait_until(lambda: {ack.topic for ack in peer.messages(Ack)} == set(ODD))
    return found


def test_any_octets_are_kept_read_and_copied(
    odd: list[TopicPartition], read: Read, consume: Consume, store: Store, start: Start
) -> None:
    reader = read()
    assert {info.tp for info in reader.partitions(None, timeout_s=PATIENCE_S)} == set(odd)
    for tp in odd:
        assert [each.tp for each in reader.partitions([tp.topic], timeout_s=PATIENCE_S)] == [tp]
        [batch] = reader.read(tp, 0, 1, timeout_s=PATIENCE_S)
        assert (batch.tp, batch.values[0]) == (tp, escape(tp.topic).encode())
    consumer = consume(*ODD, start="earliest")
    records = [consumer.poll(PATIENCE_S) for _ in odd]
    assert {(each.topic, each.partition) for each in records if each} == set(odd)
    with flight.connect(store.locations[0]) as plain:
        assert len(list(plain.list_flights())) == len(odd)
        for tp in odd:
            request = GetRequest((RecordRange(*tp, 0, 1),), ("topic", "partition"))
            [row] = plain.do_get(flight.Ticket(request.packed())).read_all().to_pylist()
            assert row == {"topic": escape(tp.topic), "partition": tp.partition}

    def is_held(by: Store) -> bool:
        with StoreClient(StoreLocation(by.address, by.locations)) as client:
            return {info.tp for info in client.heads(None, timeout_s=PATIENCE_S)} == set(odd)

    other = start("other", sync_interval_ms=100)
    wait_until(lambda: is_held(other))
    for each in (store, other):
        each.close()
    assert all(is_held(start(name)) for name in ("store", "other"))


def test_an_error_shows_a_partition_escaped(peer: RawPeer, store: Store, read: Read) -> None:
    """Other than a node's own address, which beacons carry, a message may name any partition."""
    tp = TopicPartition("t\n\x1b", "P\udcff\n")
    send(peer, [tp])
    reader = read()
    wait_until(lambda: [info.tp for info in reader.partitions(None, timeout_s=PATIENCE_S)] == [tp])
    with pytest.raises(DafkaError, match=r"topic 't\\x0a\\x1b', partition P\\xff\\x0a") as refused:
        list(reader.read(tp, 5, 6, timeout_s=0.2))
    assert str(refused.value).isprintable()


def test_our_producers_create_such_topics_only_with_an_option(
    produce: Produce, store: Store
) -> None:
    for topic in ODD:
        if escape(topic) == r"a\x5cxff":  # all characters are printable
            continue
        with pytest.raises(ConfigError, match="option allow_control_characters") as refused:
            produce(topic)
        assert str(refused.value).isprintable()
        assert refused.value.value == escape(topic)
    producer = produce(ODD[0], allow_control_characters=True)
    producer.publish(b"0")
    producer.flush(PATIENCE_S)
    assert producer.topic == ODD[0]


@pytest.mark.parametrize("address", ["P\n", "P\x7f", "é", "\udcff", "\x1b"])
def test_our_addresses_are_printable(produce: Produce, address: str) -> None:
    with pytest.raises(ConfigError, match=r"option 'address' = .* must be printable ASCII"):
        produce("t", address=address)
