"""Names of any bytes, as C nodes may choose: kept exactly, listed and read; ours are printable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import flight

from dafka_core import Consumer, Producer, Reader, Store
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import escape, text_of
from dafka_core.model.records import TopicPartition
from dafka_core.protocol.messages import Ack, RecordMessage
from dafka_core.testing import wait_until
from tests.integration.flight.hosts import LARGEST
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

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


def test_any_octets_are_kept_and_read(
    odd: list[TopicPartition], read: Callable[..., Reader], consume: Callable[..., Consumer]
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


def test_they_are_read_from_a_store_over_flight(odd: list[TopicPartition], store: Store) -> None:
    location = StoreLocation(store.address, store.locations)
    with StoreClient(location) as client:
        assert {info.tp for info in client.heads(None, timeout_s=PATIENCE_S)} == set(odd)
        for tp in odd:
            [batch] = client.read(tp, 0, 1, times=True, timeout_s=PATIENCE_S, **LARGEST)
            assert batch.values[0] == escape(tp.topic).encode()
    with flight.connect(store.locations[0]) as plain:
        assert len(list(plain.list_flights())) == len(odd)
        for tp in odd:
            request = GetRequest((RecordRange(*tp, 0, 1),), ("topic", "partition"))
            [row] = plain.do_get(flight.Ticket(request.packed())).read_all().to_pylist()
            assert row == {"topic": escape(tp.topic), "partition": tp.partition}


def test_another_store_copies_them_and_both_open_again(
    odd: list[TopicPartition], store: Store, tower: str, tmp_path: Path
) -> None:
    def held(other: Store) -> set[TopicPartition]:
        with StoreClient(StoreLocation(other.address, other.locations)) as client:
            return {info.tp for info in client.heads(None, timeout_s=PATIENCE_S)}

    with Store(tmp_path / "other", tower=tower, sync_interval_ms=100) as other:
        wait_until(lambda: held(other) == set(odd))
    store.close()
    for name in ("store", "other"):
        with Store(tmp_path / name, tower=tower) as again:
            assert held(again) == set(odd)


def test_an_error_shows_a_partition_escaped(
    peer: RawPeer, store: Store, read: Callable[..., Reader]
) -> None:
    """Other than a node's own address, which beacons carry, a message may name any partition."""
    tp = TopicPartition("t\n\x1b", "P\udcff\n")
    send(peer, [tp])
    reader = read()
    wait_until(lambda: [info.tp for info in reader.partitions(None, timeout_s=PATIENCE_S)] == [tp])
    with pytest.raises(DafkaError, match=r"topic 't\\x0a\\x1b', partition P\\xff\\x0a") as refused:
        list(reader.read(tp, 5, 6, timeout_s=0.2))
    assert str(refused.value).isprintable()


def test_our_producers_create_such_topics_only_with_an_option(
    produce: Callable[..., Producer], store: Store
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
def test_our_addresses_are_printable(produce: Callable[..., Producer], address: str) -> None:
    with pytest.raises(ConfigError, match=r"option 'address' = .* must be printable ASCII"):
        produce("t", address=address)
