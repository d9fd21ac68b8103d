"""Names, subscriptions and offsets at their limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Consumer, PartitionFullError, Producer, Reader, Store
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.name_limits import MAX_TOPIC_BYTES
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.messages import (
    RecordMessage,
)
from dafka_core.storage import Log
from dafka_core.storage.rows import PartitionRow
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address

Produce = Callable[..., Producer]
Consume = Callable[..., Consumer]
Raw = Callable[..., RawPeer]

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
    tower: str, tmp_path: Path, produce: Produce, consume: Consume, read: Callable[..., Reader]
) -> None:
    tp = TopicPartition(LONGEST, new_address())
    first = MAX_SEQUENCE - 9
    with Log(tmp_path) as log:
        # As if all before had been trimmed.
        row = PartitionRow(0, first, first, 0, 0)
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
