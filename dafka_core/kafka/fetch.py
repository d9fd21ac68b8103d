"""Fetch: records of many partitions, as soon as there are enough of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.beyond_end import BeyondEnd
from dafka_core.kafka.gateway_node import Client, Feature, GatewayNode, Handler
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.log_reading import Encode, LogReading, WantedRecords
from dafka_core.kafka.log_watch import LogWatch
from dafka_core.kafka.readable import readable
from dafka_core.kafka.records import message_set
from dafka_core.kafka.records.record_batch import encode_record_batches
from dafka_core.kafka.schemas import FetchResponse

TIMESTAMPS_FROM: Final = 2
RECORD_BATCHES_FROM: Final = 4
"""Versions of Fetch from which on clients know newer formats of records."""

MAX_WAIT_S: Final = 300.0
"""A client that wants to wait for longer gets an answer without records, and asks again."""

ROOM_STEP_S: Final = 0.1
"""How often it is looked for room, where other clients do not take what they were sent."""

_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


class Fetch(Feature):
    """Answers Fetch from the store's own log.

    Sessions are refused, as Kafka lets a broker do: each answer says session 0, so clients name all
    of their partitions in each request.
    """

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._log = node.store.log
        self._beyond_end = BeyondEnd(self._log)
        self._watch: LogWatch
        self.handlers: dict[int, Handler] = {Api.FETCH: self._fetch}

    async def start(self) -> None:
        """Hears of the log's changes from now on."""
        self._watch = LogWatch(self._log.changes)

    async def close(self) -> None:
        """Hears of none any more."""
        self._watch.close()

    async def _fetch(self, request: Any, client: Client) -> Any:
        if request.session_id and request.session_epoch > 0:
            return _response(KafkaError.FETCH_SESSION_ID_NOT_FOUND, [])
        topics = [
            (topic.topic, [self._wanted(topic.topic, asked) for asked in topic.partitions])
            for topic in request.topics
        ]
        wanted = [each for _, partitions in topics for each in partitions]
        reading = LogReading(
            self._log,
            self._beyond_end,
            wanted,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms / 1000, MAX_WAIT_S)
        await self._wait(reading, deadline)
        await self._read(reading, deadline, encoder(client.version))
        return _response(KafkaError.NONE, topics)

    def _wanted(self, topic: str, asked: Any) -> WantedRecords:
        found = readable(self._node, topic, asked.partition, asked.current_leader_epoch)
        place = (asked.partition, asked.fetch_offset, asked.partition_max_bytes)
        if isinstance(found, KafkaError):
            return WantedRecords(None, *place, found)
        return WantedRecords(found, *place)

    async def _wait(self, reading: LogReading, deadline: float) -> None:
        with self._watch.waiting(reading.partitions) as wait:
            changed = None
            while not await self._node.in_thread(reading.look, changed):
                try:
                    async with asyncio.timeout_at(deadline):
                        await wait.woken.wait()
                except TimeoutError:
                    return
                changed = wait.take()

    async def _read(self, reading: LogReading, deadline: float, encode: Encode) -> None:
        """Reads as much as there is room for beside what other clients have not taken yet.

        Nothing if there is no room until the deadline: that client asks again.
        """
        loop, room = asyncio.get_running_loop(), self._node.room
        while (left := room.size_bytes - room.taken_bytes) <= 0:
            if loop.time() >= deadline:
                return
            await asyncio.sleep(ROOM_STEP_S)
        taken = min(left, reading.most_bytes)
        room.add(taken)
        try:
            await self._node.in_thread(reading.read, encode, taken)
        finally:
            room.give_back(taken)


def encoder(version: int) -> Encode:
    """Records in the format that clients know who ask in this version of Fetch."""
    if version >= RECORD_BATCHES_FROM:
        return lambda batch: b"".join(encode_record_batches(batch))
    magic = message_set.V1 if version >= TIMESTAMPS_FROM else message_set.V0
    return lambda batch: message_set.encode_message_set(batch, magic)


def _response(error: KafkaError, topics: Sequence[tuple[str, Sequence[WantedRecords]]]) -> Any:
    return FetchResponse(
        throttle_time_ms=0,
        error_code=error,
        session_id=0,
        responses=[
            _Topic(topic=name, partitions=[_partition(each) for each in partitions])
            for name, partitions in topics
        ],
    )


def _partition(read: WantedRecords) -> Any:
    return _Partition(
        partition_index=read.number,
        error_code=read.error,
        high_watermark=read.end,
        last_stable_offset=read.end,
        log_start_offset=read.earliest,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=read.records,
    )
