"""Unmodified Kafka clients behind one interface, to write and read the same records."""

import asyncio
import gc
import time
import warnings
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

from dafka_core.model.envelope import Headers
from dafka_core.system.closing import Closing
from tests.integration.kafka.locked import Login

T = TypeVar("T")

PATIENCE_S: Final = 60.0  # timeout of any operation on a busy machine


class Sent(NamedTuple):
    """A record, as clients write and read it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    time_ms: int = 1_700_000_000_000


class FailedError(Exception):
    """A write that failed."""


class KafkaReader(Closing):
    """A consumer of partition 0 of a topic, without a group, from offset 0 on."""

    @abstractmethod
    def poll(self) -> list[tuple[int, Sent]]:
        """Return new records with their offsets; empty after a timeout."""

    def read(self, count: int) -> list[tuple[int, Sent]]:
        """Return ``count`` records, or fewer after a timeout."""
        found: list[tuple[int, Sent]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            found += self.poll()
        return found


class KafkaClient:
    """One client library; options have the names of Python's libraries."""

    COMPRESSIONS: Sequence[str] = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, servers: str, login: Login | None = None) -> None:
        self.servers = servers
        self.login = login

    def write(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        compression: str = "none",
        idempotent: bool = False,
        acks: str | int = "all",
        **options: Any,
    ) -> list[int]:
        """Write to partition 0; return the offsets.

        Raises:
            FailedError: a record was refused, or the client.
        """
        how = {"compression_type": compression, "enable_idempotence": idempotent, "acks": acks}
        return self._write(topic, records, how | {"linger_ms": 5} | options)

    @abstractmethod
    def _write(self, topic: str, records: Sequence[Sent], options: dict[str, Any]) -> list[int]: ...

    @abstractmethod
    def reading(self, topic: str = "t", **options: Any) -> KafkaReader:
        """Read a topic."""


def _dotted(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in options.items()}


class Librdkafka(KafkaClient):
    """confluent-kafka."""

    def config(self) -> dict[str, Any]:
        login = self.login.librdkafka() if self.login else {}
        return {"bootstrap.servers": self.servers, "log_level": 0, **login}

    def _write(self, topic: str, records: Sequence[Sent], options: dict[str, Any]) -> list[int]:
        offsets: list[int] = []
        errors: list[confluent_kafka.KafkaError] = []

        def note(error: Any, message: Any) -> None:
            errors.append(error) if error is not None else offsets.append(message.offset())

        def failed(error: confluent_kafka.KafkaError) -> None:
            errors.extend([error] * (error.code() == confluent_kafka.KafkaError._AUTHENTICATION))

        settings = self.config() | _dotted(options) | {"error_cb": failed}
        producer = confluent_kafka.Producer(settings)
        for each in records:
            producer.produce(
                *(topic, each.value, each.key, 0),
                on_delivery=note,
                timestamp=each.time_ms,
                headers=list(each.headers),
            )
        deadline = time.monotonic() + PATIENCE_S
        while len(producer) and not errors and time.monotonic() < deadline:
            producer.poll(0.1)
        if errors:
            producer.purge()
            raise FailedError(errors[0].str())
        return offsets

    def reading(self, topic: str = "t", **options: Any) -> KafkaReader:
        ours = {"group.id": "unused", "enable.auto.commit": False, "fetch.wait.max.ms": 500}
        return LibrdkafkaReader(self.config() | ours | _dotted(options), topic)


class LibrdkafkaReader(KafkaReader):
    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def poll(self) -> list[tuple[int, Sent]]:
        messages: list[Any] = self._consumer.consume(1_000, 0.2)
        assert [each.error() for each in messages] == [None] * len(messages)
        return [
            (m.offset(), Sent(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]))
            for m in messages
        ]

    def close(self) -> None:
        self._consumer.close()


class PythonClient(KafkaClient):
    """kafka-python or aiokafka, with similar options."""

    def config(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.servers, **(self.login.python() if self.login else {})}

    def _write(self, topic: str, records: Sequence[Sent], options: dict[str, Any]) -> list[int]:
        if options["compression_type"] == "none":
            options["compression_type"] = None
        try:
            return self._written(topic, records, self.config() | options)
        except (kafka.errors.KafkaError, aiokafka.errors.KafkaError) as error:
            why = repr(error)
        collect()  # what the error has referred to
        raise FailedError(why)

    @abstractmethod
    def _written(
        self, topic: str, records: Sequence[Sent], options: dict[str, Any]
    ) -> list[int]: ...

    def _reading_options(self, options: dict[str, Any]) -> dict[str, Any]:
        ours = {"enable_auto_commit": False, "group_id": None, "fetch_max_wait_ms": 500}
        return self.config() | ours | {"request_timeout_ms": 60_000} | options


def _of(found: dict[Any, list[Any]]) -> list[tuple[int, Sent]]:
    return [
        (each.offset, Sent(each.key, each.value, tuple(map(tuple, each.headers)), each.timestamp))
        for records in found.values()
        for each in records
    ]


class KafkaPython(PythonClient):
    """kafka-python; snappy and lz4 need further packages."""

    COMPRESSIONS = ("none", "gzip", "zstd")

    def _written(self, topic: str, records: Sequence[Sent], options: dict[str, Any]) -> list[int]:
        producer = kafka.KafkaProducer(**options)
        try:
            sent = [
                producer.send(topic, each.value, each.key, list(each.headers), 0, each.time_ms)
                for each in records
            ]
            return [int(each.get(timeout=PATIENCE_S).offset) for each in sent]
        finally:
            producer.close()

    def reading(self, topic: str = "t", **options: Any) -> KafkaReader:
        place = kafka.TopicPartition(topic, 0)
        consumer = kafka.KafkaConsumer(**self._reading_options(options))
        consumer.assign([place])
        return PythonReader(consumer, place)


class PythonReader(KafkaReader):
    def __init__(self, consumer: Any, place: Any) -> None:
        self._consumer = consumer
        consumer.seek(place, 0)

    def poll(self) -> list[tuple[int, Sent]]:
        return _of(self._consumer.poll(timeout_ms=200))

    def close(self) -> None:
        self._consumer.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run as ``asyncio.run``, and close connections that aiokafka leaves open."""
    try:
        return asyncio.run(work)
    finally:
        collect()


def collect() -> None:
    """Close connections that aiokafka leaves open.

    It does not await their end. Collecting them here keeps their ResourceWarnings out of later
    tests.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Aiokafka(PythonClient):
    """aiokafka."""

    def _written(self, topic: str, records: Sequence[Sent], options: dict[str, Any]) -> list[int]:
        async def work() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(**options)
            try:
                await producer.start()
                sent = [
                    await producer.send(
                        *(topic, each.value, each.key, 0, each.time_ms), headers=list(each.headers)
                    )
                    for each in records
                ]
                return [int((await each).offset) for each in sent]
            finally:
                await producer.stop()

        return run(asyncio.wait_for(work(), PATIENCE_S))

    def reading(self, topic: str = "t", **options: Any) -> KafkaReader:
        return AiokafkaReader(self._reading_options(options), topic)


class AiokafkaReader(PythonReader):
    def __init__(self, options: dict[str, Any], topic: str) -> None:
        self._runner, place = asyncio.Runner(), aiokafka.TopicPartition(topic, 0)

        async def started() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(**options)
            await consumer.start()
            consumer.assign([place])
            return consumer

        super().__init__(self._runner.run(started()), place)

    def poll(self) -> list[tuple[int, Sent]]:
        return _of(self._runner.run(self._consumer.getmany(timeout_ms=200)))

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()
        collect()


CLIENTS: Final = (Librdkafka, KafkaPython, Aiokafka)
