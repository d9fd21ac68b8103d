"""A group member in a process of its own, as an application would write it.

It prints the partition and offset of each record, and commits after each poll, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

SESSION_MS = 3_000
BEAT_MS = 500
WAIT_S = 0.2

ended: list[int] = []


def say(number: int, offset: int) -> None:
    print(number, offset, flush=True)


def confluent(servers: str, group: str, topic: str, instance: str) -> None:
    from confluent_kafka import Consumer

    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": group,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": BEAT_MS,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 500,
        "reconnect.backoff.max.ms": 500,
    }
    consumer = Consumer(settings | ({"group.instance.id": instance} if instance else {}))
    consumer.subscribe([topic])
    while not ended:
        messages = [each for each in consumer.consume(100, WAIT_S) if each.error() is None]
        for each in messages:
            say(each.partition() or 0, each.offset() or 0)
        if messages:
            _try(lambda: consumer.commit(asynchronous=False))
    consumer.close()


def kafka_python(servers: str, group: str, topic: str, instance: str) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers.split(","),
        group_id=group,
        group_instance_id=instance or None,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=BEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=500,
    )
    while not ended:
        found = consumer.poll(timeout_ms=int(WAIT_S * 1000))
        for messages in found.values():
            for each in messages:
                say(each.partition, each.offset)
        if found:
            _try(consumer.commit)
    consumer.close()


def aio(servers: str, group: str, topic: str, instance: str) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            group_instance_id=instance or None,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=BEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=500,
        )
        await consumer.start()
        while not ended:
            found = await consumer.getmany(timeout_ms=int(WAIT_S * 1000))
            for messages in found.values():
                for each in messages:
                    say(each.partition, each.offset)
            if found:
                try:
                    await consumer.commit()
                except KafkaError as error:
                    print(repr(error), file=sys.stderr, flush=True)
        await consumer.stop()

    asyncio.run(run())


def _try(commit: Any) -> None:
    """After losing its partitions a member can't commit; the new owner reads again."""
    try:
        commit()
    except Exception as error:  # noqa: BLE001 -- each library has errors of its own
        print(repr(error), file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aio}[sys.argv[1]](
        *sys.argv[2:6]
    )
