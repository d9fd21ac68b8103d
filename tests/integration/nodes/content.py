"""Records to publish, and how far they have come."""

from __future__ import annotations

from dafka_core import Producer, Store
from dafka_core.records import TopicPartition


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def has_published(producer: Producer, end: int) -> bool:
    """The records are on their way: no store can have acknowledged them before."""
    return producer._role.next_offset == end


def has_acknowledged(producer: Producer, end: int) -> bool:
    return producer._role.durable >= end


def stored(store: Store, topic: str, partition: str) -> list[bytes]:
    tp = TopicPartition(topic, partition)
    batches = store.log.read(tp, 0, store.log.end(tp))
    return [value for batch in batches for value in batch.values]


def holds(store: Store, ends: list[int]) -> bool:
    return [info.end for info in store.log.partitions()] == ends
