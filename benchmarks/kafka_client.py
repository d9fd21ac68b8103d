"""librdkafka as a process of its own: ``python -m benchmarks.kafka_client WHAT SERVERS TOPIC ...``.

It prints how many seconds it took, without what it takes to start.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

CHUNK = 10_000
"""Messages handed over at a time."""

WAIT_S = 60.0


def produce(servers: str, topic: str, records: int, size_bytes: int, partitions: int) -> float:
    """Produces to all partitions in turns, until all is acknowledged; with librdkafka's defaults.

    But for the room in its queue, without which the application would wait most of the time.  Who
    consumes it sees whether all is there.
    """
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    producer.list_topics(topic, timeout=WAIT_S)
    values = [os.urandom(size_bytes) for _ in range(CHUNK)]
    started = time.perf_counter()
    for number, start in enumerate(range(0, records, CHUNK)):
        messages = [{"value": value} for value in values[: records - start]]
        taken = 0
        while taken < len(messages):
            taken += producer.produce_batch(topic, messages[taken:], partition=number % partitions)
            producer.poll(0 if taken == len(messages) else 0.01)
    if producer.flush(WAIT_S):
        raise TimeoutError("not all was acknowledged")
    return time.perf_counter() - started


def consume(servers: str, topic: str, records: int, size_bytes: int, partitions: int) -> float:
    """Consumes all partitions from their beginning, until all records are there."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Else a client that has enough for now asks for nothing for a second.
            "fetch.queue.backoff.ms": 0,
        }
    )
    consumer.list_topics(topic, timeout=WAIT_S)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found = 0
    started = time.perf_counter()
    while found < records:
        messages = consumer.consume(min(CHUNK, records - found), timeout=WAIT_S)
        if not messages:
            raise TimeoutError(f"{found} of {records} came")
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
        found += len(messages)
    elapsed_s = time.perf_counter() - started
    consumer.close()
    return elapsed_s


def main() -> None:
    """Runs one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("produce", "consume"))
    parser.add_argument("servers")
    parser.add_argument("topic")
    for number in ("records", "size_bytes", "partitions"):
        parser.add_argument(number, type=int)
    given = parser.parse_args()
    run = produce if given.what == "produce" else consume
    print(run(given.servers, given.topic, given.records, given.size_bytes, given.partitions))


if __name__ == "__main__":
    main()
