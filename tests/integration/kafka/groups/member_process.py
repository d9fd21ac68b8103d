"""A group member in a process of its own, as an application would write it.

It prints the partition and offset of each record, and commits after each poll, until SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

SESSION_MS = 3_000
BEAT_MS = 500
WAIT_S = 0.2
OPTIONS: dict[str, Any] = {
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": BEAT_MS,
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "metadata_max_age_ms": 500,
}
"""Options of Python's libraries."""

Read = list[tuple[int, int]]  # partitions and offsets

ended: list[int] = []


def consume(poll: Callable[[], Read], commit: Callable[[], object]) -> None:
    while not ended:
        for number, offset in (found := poll()):
            print(number, offset, flush=True)
        if found:
            try:
                commit()
            except Exception as error:  # noqa: BLE001 -- each library has errors of its own
                # After losing its partitions a member can't commit; the new owner reads again.
                print(repr(error), file=sys.stderr, flush=True)


def places(found: dict[Any, list[Any]]) -> Read:
    return [(each.partition, each.offset) for messages in found.values() for each in messages]


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

    def poll() -> Read:
        messages = [each for each in consumer.consume(100, WAIT_S) if each.error() is None]
        return [(each.partition() or 0, each.offset() or 0) for each in messages]

    consume(poll, lambda: consumer.commit(asynchronous=False))
    consumer.close()


def kafka_python(servers: str, group: str, topic: str, instance: str) -> None:
    from kafka import KafkaConsumer

    named = {"group_id": group, "group_instance_id": instance or None}
    consumer = KafkaConsumer(topic, bootstrap_servers=servers.split(","), **named, **OPTIONS)
    consume(lambda: places(consumer.poll(timeout_ms=int(WAIT_S * 1000))), consumer.commit)
    consumer.close()


def aio(servers: str, group: str, topic: str, instance: str) -> None:
    from aiokafka import AIOKafkaConsumer

    named = {"group_id": group, "group_instance_id": instance or None}
    with asyncio.Runner() as runner:

        async def start() -> Any:
            consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, **named, **OPTIONS)
            await consumer.start()
            return consumer

        consumer = runner.run(start())
        consume(
            lambda: places(runner.run(consumer.getmany(timeout_ms=int(WAIT_S * 1000)))),
            lambda: runner.run(consumer.commit()),
        )
        runner.run(consumer.stop())


if __name__ == "__main__":
    libraries = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aio}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    libraries[sys.argv[1]](*sys.argv[2:6])
