"""ListOffsets: the bounds of partitions, and the first offset at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from dafka_core.errors import StoreError
from dafka_core.model.records import UNKNOWN_US, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.block import MAX_BLOCK_RECORDS
from dafka_kafka.api import Answer, Api, Client, Feature, on_topics, serves
from dafka_kafka.errors import KafkaError
from dafka_kafka.fetch import readable, say_damaged
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.users import Operation

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
"""Special timestamps in requests. There is no tiered storage."""

SINCE: Final = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version with each of them."""

BOUNDS: Final = (LATEST, EARLIEST, EARLIEST_LOCAL)
FEW: Final = 8
"""Up to this many partitions, reading the bounds is quicker than starting a thread. Spark's
connector asks for the bounds of one partition twice for each 500 records."""

OFFSET_NOT_AVAILABLE_SINCE: Final = 5
"""The first version with this error, for an unknown high watermark."""

_DESCRIBE: Final = on_topics(Operation.DESCRIBE)

UNKNOWN: Final = -1  # reported where there is no such offset or time


class FoundOffset(NamedTuple):
    """An offset and its record's time in milliseconds; ``UNKNOWN`` where there is none."""

    offset: int = UNKNOWN
    timestamp: int = UNKNOWN


class ListOffsets(Feature):
    """Answers ListOffsets from the store's own log."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node

    @serves(Api.LIST_OFFSETS, range(12))
    async def _list_offsets(self, request: Any, client: Client) -> Answer:
        find = partial(self._readable, client)
        asked = [
            (topic.name, [(each, find(topic.name, each)) for each in topic.partitions])
            for topic in request.topics
        ]
        each = [partition for _, partitions in asked for partition, _ in partitions]
        if len(each) <= FEW and all(partition.timestamp in BOUNDS for partition in each):
            topics = self._answer(asked, client.version)
        else:
            topics = await self._node.in_thread(self._answer, asked, client.version)
        return {"topics": topics}

    def _readable(self, client: Client, topic: str, asked: Any) -> TopicPartition | KafkaError:
        version, place = client.version, (topic, asked.partition_index, asked.current_leader_epoch)
        if asked.timestamp < 0 and version < SINCE.get(asked.timestamp, version + 1):
            return KafkaError.UNSUPPORTED_VERSION
        return client.refusal(_DESCRIBE, topic) or readable(self._node, *place)

    def _answer(self, topics: Sequence[tuple[str, Sequence[Any]]], version: int) -> list[Answer]:
        answered = partial(self._answered, version)
        return [
            {"name": name, "partitions": [answered(each, tp) for each, tp in asked]}
            for name, asked in topics
        ]

    def _answered(self, version: int, asked: Any, tp: TopicPartition | KafkaError) -> Answer:
        log = self._node.store.log
        error, found, old = KafkaError.NONE, FoundOffset(), list[int]()
        if isinstance(tp, KafkaError):
            error = tp
        else:
            try:
                end = self._node.watermark(tp, log.end(tp))
                if end is None:
                    error = KafkaError.OFFSET_NOT_AVAILABLE
                    if version < OFFSET_NOT_AVAILABLE_SINCE:
                        error = KafkaError.LEADER_NOT_AVAILABLE
                elif version == 0:
                    old = old_style_offsets(log, tp, end, asked.timestamp, asked.max_num_offsets)
                else:
                    found = offset_of(log, tp, end, asked.timestamp)
            except StoreError as damage:
                error = say_damaged(damage)
        number = asked.partition_index
        told = {"partition_index": number, "error_code": error, "old_style_offsets": old}
        return told | found._asdict()


def offset_of(log: Log, tp: TopicPartition, end: int, timestamp: int) -> FoundOffset:
    """Return the offset for a time in milliseconds, or for a special timestamp.

    For a time, it is the first record at or after it. ``end`` is the partition's high watermark.

    Raises:
        StoreError: the log is damaged there.
    """
    held = log.info(tp)
    earliest = held.earliest if held else 0
    if timestamp in BOUNDS:
        return FoundOffset(max(end, earliest) if timestamp == LATEST else earliest)
    time_us = timestamp * 1000
    if timestamp == MAX_TIMESTAMP:
        found = log.statistics(tp)
        if found is None or found.last_time_us is None:
            return FoundOffset()
        time_us = found.last_time_us
    elif timestamp < 0:
        return FoundOffset()
    offset = log.offset_for_time(tp, time_us)
    is_readable = offset is not None and offset < end
    if timestamp == MAX_TIMESTAMP and not is_readable and earliest < end:
        # The greatest one was trimmed, or is beyond the high watermark.
        offset = log.offset_for_time(tp, newest_us(log, tp, earliest, end))
    if offset is None or offset >= end:
        return FoundOffset()
    times = log.times(tp, offset, offset + 1)
    return FoundOffset(offset, milliseconds(times[0][1]) if times else UNKNOWN)


def newest_us(log: Log, tp: TopicPartition, start: int, end: int) -> int:
    """Return the greatest time of a partition's records from ``start`` to ``end`` (exclusive).

    It reads them from the last ones on, until no earlier one can have a greater time.

    Raises:
        StoreError: the log is damaged there.
    """
    newest = UNKNOWN_US
    while start < end:
        first = max(start, end - MAX_BLOCK_RECORDS)
        with log.snapshot() as snapshot:
            for batch in snapshot.read(tp, first, end):
                assert batch.times is not None  # a block has its records' times
                newest = max(newest, int(batch.times[:, 1].max()))
            held = snapshot.info(tp)
            if held is None or first <= held.earliest or snapshot.newest_us(tp, first) <= newest:
                break
        end = first
    return newest


def old_style_offsets(
    log: Log, tp: TopicPartition, end: int, timestamp: int, most: int
) -> list[int]:
    """Return at most ``most`` offsets of version 0: the one for the time, then the earliest.

    Kafka's brokers listed the starts of their segments, newest first; this log has one segment.

    Raises:
        StoreError: the log is damaged there.
    """
    earliest = offset_of(log, tp, end, EARLIEST).offset
    found = offset_of(log, tp, end, timestamp).offset
    if found == UNKNOWN:
        found = offset_of(log, tp, end, LATEST).offset
    return sorted({earliest, max(earliest, found)}, reverse=True)[: max(most, 0)]


def milliseconds(time_us: int) -> int:
    """Return a record's time in Kafka's milliseconds; -1 if unknown."""
    return UNKNOWN if time_us == UNKNOWN_US else time_us // 1000
