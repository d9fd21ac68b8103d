"""Three unmodified Kafka clients that consume a partition without a group."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

from dafka_core.testing.waiting import PATIENCE_S
from tests.integration.kafka import aio

EARLIEST, LATEST = "earliest", "latest"


class Got(NamedTuple):
    """A record, as a client returns it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class ReadingClient(ABC):
    """Consumes topic ``t``, partition 0; Fetch waits for ``wait_ms``."""

    @abstractmethod
    def seek(self, offset: int) -> None: ...

    @abstractmethod
    def poll(self) -> list[Got]:
        """Return new records; empty after a timeout."""

    @abstractmethod
    def bounds(self) -> tuple[int, int]:
        """Return the partition's bounds."""

    @abstractmethod
    def offset_for(self, timestamp_ms: int) -> int | None: ...

    def read(self, count: int) -> list[Got]:
        """Return ``count`` records, or fewer after a timeout."""
        found: list[Got] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            found += self.poll()
        return found


class Confluent(ReadingClient):
    def __init__(self, servers: str, wait_ms: int, **options: Any) -> None:
        self._tp = confluent_kafka.TopicPartition("t", 0)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": wait_ms,
                "socket.timeout.ms": 60_000,
                **{name.replace("_", "."): value for name, value in options.items()},
            }
        )
        self.seek(0)

    def seek(self, offset: int) -> None:
        self._consumer.assign([confluent_kafka.TopicPartition("t", 0, offset)])

    def poll(self) -> list[Got]:
        messages = self._consumer.consume(1_000, 0.2)
        for each in messages:
            assert each.error() is None, each.error()
        return [_got_message(each) for each in messages]

    def bounds(self) -> tuple[int, int]:
        low, high = self._consumer.get_watermark_offsets(self._tp, timeout=PATIENCE_S)
        return low, high

    def offset_for(self, timestamp_ms: int) -> int | None:
        asked = confluent_kafka.TopicPartition("t", 0, timestamp_ms)
        [found] = self._consumer.offsets_for_times([asked], timeout=PATIENCE_S)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        self._consumer.close()


class KafkaPython(ReadingClient):
    def __init__(self, servers: str, wait_ms: int, **options: Any) -> None:
        self._tp = kafka.TopicPartition("t", 0)
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            enable_auto_commit=False,
            group_id=None,
            fetch_max_wait_ms=wait_ms,
            request_timeout_ms=60_000,
            **options,
        )
        self._consumer.assign([self._tp])
        self.seek(0)

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._tp, offset)

    def poll(self) -> list[Got]:
        found = self._consumer.poll(timeout_ms=200)
        return [_got(each) for records in found.values() for each in records]

    def bounds(self) -> tuple[int, int]:
        return (
            self._consumer.beginning_offsets([self._tp])[self._tp],
            self._consumer.end_offsets([self._tp])[self._tp],
        )

    def offset_for(self, timestamp_ms: int) -> int | None:
        found = self._consumer.offsets_for_times({self._tp: timestamp_ms})[self._tp]
        return None if found is None else found.offset

    def close(self) -> None:
        self._consumer.close()


class Aiokafka(ReadingClient):
    def __init__(self, servers: str, wait_ms: int, **options: Any) -> None:
        self._tp = aiokafka.TopicPartition("t", 0)
        self._runner = asyncio.Runner()

        async def started() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=servers,
                enable_auto_commit=False,
                fetch_max_wait_ms=wait_ms,
                request_timeout_ms=60_000,
                **options,
            )
            await consumer.start()
            consumer.assign([self._tp])
            return consumer

        self._consumer = self._runner.run(started())
        self.seek(0)

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._tp, offset)

    def poll(self) -> list[Got]:
        found = self._runner.run(self._consumer.getmany(timeout_ms=200))
        return [_got(each) for records in found.values() for each in records]

    def bounds(self) -> tuple[int, int]:
        async def asked() -> tuple[int, int]:
            begin = await self._consumer.beginning_offsets([self._tp])
            end = await self._consumer.end_offsets([self._tp])
            return begin[self._tp], end[self._tp]

        return self._runner.run(asked())

    def offset_for(self, timestamp_ms: int) -> int | None:
        found = self._runner.run(self._consumer.offsets_for_times({self._tp: timestamp_ms}))
        return None if found[self._tp] is None else found[self._tp].offset

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()
        aio.collect()


def _got_message(message: Any) -> Got:
    headers, (_, timestamp_ms) = message.headers() or [], message.timestamp()
    return Got(message.offset(), message.key(), message.value(), headers, timestamp_ms)


def _got(record: Any) -> Got:
    headers = list(map(tuple, record.headers))
    return Got(record.offset, record.key, record.value, headers, record.timestamp)


CLIENTS = (Confluent, KafkaPython, Aiokafka)


@contextmanager
def reading(
    kind: Any, servers: str, *, wait_ms: int = 500, **options: Any
) -> Iterator[ReadingClient]:
    """Open a client; its requests are answered after the waiting Fetch."""
    client = kind(servers, wait_ms, **options)
    try:
        yield client
    finally:
        client.close()
