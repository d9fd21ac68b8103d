"""Unmodified Kafka clients behind one interface, to write and read the same records."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import aiokafka
import confluent_kafka
import kafka
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import AdminClient

from tests.integration.kafka import aio

PATIENCE_S: Final = 60.0
"""Timeout of any operation on a busy machine."""


class Sent(NamedTuple):
    """A record, as clients write and read it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    time_ms: int


class KafkaClient(ABC):
    """One client library, connected to ``servers`` during each call."""

    COMPRESSIONS: Sequence[str] = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, servers: str) -> None:
        self.servers = servers

    @abstractmethod
    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of an existing topic."""

    @abstractmethod
    def write(
        self, topic: str, partition: int, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        """Write records and return their offsets; options are compression, idempotent and acks."""

    @abstractmethod
    def read(self, topic: str, partition: int, offset: int, count: int) -> list[tuple[int, Sent]]:
        """Read ``count`` records from an offset on, with their offsets."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """Return the first offset at or after a time, or None."""


class Librdkafka(KafkaClient):
    """confluent-kafka."""

    def partition_count(self, topic: str) -> int:
        admin = AdminClient(self._config())
        return len(admin.list_topics(timeout=PATIENCE_S).topics[topic].partitions)

    def write(
        self, topic: str, partition: int, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            self._config()
            | {
                "compression.type": options.get("compression", "none"),
                "enable.idempotence": options.get("idempotent", False),
                "acks": options.get("acks", "all"),
                "linger.ms": 5,
            }
        )
        offsets: list[int] = []
        errors: list[object] = []

        def note(error: object, message: Any) -> None:
            errors.append(error) if error is not None else offsets.append(message.offset())

        for each in records:
            producer.produce(
                *(topic, each.value, each.key, partition),
                on_delivery=note,
                timestamp=each.time_ms,
                headers=list(each.headers),
            )
        assert producer.flush(PATIENCE_S) == 0
        assert errors == []
        return offsets

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[tuple[int, Sent]]:
        consumer = self._consumer()
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            found: list[tuple[int, Sent]] = []
            while len(found) < count:
                [message] = consumer.consume(1, PATIENCE_S)
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                sent = Sent(message.key(), message.value(), headers, message.timestamp()[1])
                found.append((message.offset(), sent))
            return found
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        consumer = self._consumer()
        try:
            where = confluent_kafka.TopicPartition(topic, partition, time_ms)
            [found] = consumer.offsets_for_times([where], PATIENCE_S)
            return int(found.offset) if found.offset >= 0 else None
        finally:
            consumer.close()

    def _config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers}

    def _consumer(self) -> Any:
        ours = {"group.id": "none", "enable.auto.commit": False, "enable.partition.eof": False}
        return confluent_kafka.Consumer(self._config() | ours)


class KafkaPython(KafkaClient):
    """kafka-python; snappy and lz4 need further packages."""

    COMPRESSIONS = ("none", "gzip", "zstd")

    def partition_count(self, topic: str) -> int:
        with self._consumer() as consumer:
            return len(consumer.partitions_for_topic(topic))

    def write(
        self, topic: str, partition: int, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        compression = options.get("compression", "none")
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.servers,
            compression_type=None if compression == "none" else compression,
            enable_idempotence=options.get("idempotent", False),
            acks=options.get("acks", "all"),
            linger_ms=5,
        )
        try:
            sent = [
                producer.send(
                    *(topic, each.value, each.key, list(each.headers)),
                    partition=partition,
                    timestamp_ms=each.time_ms,
                )
                for each in records
            ]
            return [int(each.get(timeout=PATIENCE_S).offset) for each in sent]
        finally:
            producer.close()

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[tuple[int, Sent]]:
        with self._consumer() as consumer:
            where = kafka.TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            found = [next(consumer) for _ in range(count)]
        return [(each.offset, _sent(each)) for each in found]

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        with self._consumer() as consumer:
            where = kafka.TopicPartition(topic, partition)
            found = consumer.offsets_for_times({where: time_ms})[where]
            return None if found is None else int(found.offset)

    def _consumer(self) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=self.servers, consumer_timeout_ms=1_000 * PATIENCE_S
        )


class Aiokafka(KafkaClient):
    """aiokafka."""

    def partition_count(self, topic: str) -> int:
        async def look() -> int:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
            await admin.start()
            try:
                [found] = await admin.describe_topics([topic])
                return len(found["partitions"])
            finally:
                await admin.close()

        return aio.run(look())

    def write(
        self, topic: str, partition: int, records: Sequence[Sent], **options: Any
    ) -> list[int]:
        compression = options.get("compression", "none")

        async def work() -> list[int]:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.servers,
                compression_type=None if compression == "none" else compression,
                enable_idempotence=options.get("idempotent", False),
                acks=options.get("acks", "all"),
                linger_ms=5,
            ) as producer:
                sent = [
                    await producer.send(
                        *(topic, each.value, each.key, partition, each.time_ms),
                        headers=list(each.headers),
                    )
                    for each in records
                ]
                return [int((await each).offset) for each in sent]

        return aio.run(work())

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[tuple[int, Sent]]:
        async def work() -> list[tuple[int, Sent]]:
            async with self._consumer() as consumer:
                where = aiokafka.TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, offset)
                found = [await consumer.getone() for _ in range(count)]
            return [(each.offset, _sent(each)) for each in found]

        return aio.run(asyncio.wait_for(work(), PATIENCE_S))

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        async def work() -> int | None:
            async with self._consumer() as consumer:
                where = aiokafka.TopicPartition(topic, partition)
                found = (await consumer.offsets_for_times({where: time_ms}))[where]
                return None if found is None else int(found.offset)

        return aio.run(work())

    def _consumer(self) -> Any:
        return aiokafka.AIOKafkaConsumer(bootstrap_servers=self.servers)


def _sent(message: Any) -> Sent:
    return Sent(message.key, message.value, tuple(message.headers), message.timestamp)


CLIENTS: Final = (Librdkafka, KafkaPython, Aiokafka)
