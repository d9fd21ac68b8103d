"""Records to publish, and how far they have come.

Only a producer's role knows the progress of its records: a call of the producer would hurry it.
"""

from dafka_core import Consumer, Producer, Store
from dafka_core.model.records import TopicPartition
from tests.integration.nodes.peers import PATIENCE_S

Place = tuple[str, str, int, bytes | None]  # a record's topic, partition, offset and value


def polled(consumer: Consumer, timeout_s: float = 30.0) -> Place | None:
    """Return topic, partition, offset and value of the next record."""
    record = consumer.poll(timeout_s)
    return record and record[:4]


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def flushed(producer: Producer, records: list[bytes]) -> Producer:
    """Return a producer with acknowledged records."""
    producer.publish_many(records)
    producer.flush(PATIENCE_S)
    return producer


def has_published(producer: Producer, end: int) -> bool:
    """The records are on their way: no store can have acknowledged them before."""
    return producer.role.next_offset == end


def acknowledged_end(producer: Producer) -> int:
    return producer.role.acknowledged


def has_acknowledged(producer: Producer, end: int) -> bool:
    return acknowledged_end(producer) >= end


def acknowledged_by(producer: Producer) -> dict[str, int]:
    """By store: up to where it has acknowledged."""
    return producer.role.acknowledgements.by_store


def stored(store: Store, topic: str, partition: str) -> list[bytes]:
    tp = TopicPartition(topic, partition)
    batches = store.log.read(tp, 0, store.log.end(tp))
    return [value for batch in batches for value in batch.values]
