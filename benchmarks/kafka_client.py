"""librdkafka in its own process: ``python -m benchmarks.kafka_client WHAT SERVERS TOPIC ...``.

It prints its seconds, without its start.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

CHUNK = 10_000  # messages passed at a time

WAIT_S = 60.0


def produce(servers: str, topic: str, records: int, size_bytes: int, partitions: int) -> float:
    """Produce to all partitions in turn, until all is acknowledged; with librdkafka's defaults.

    Except for a larger queue, without which the application would mostly wait. The consumer checks
    that all records arrived.
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
    """Consume all partitions from the beginning, until all records have come."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Otherwise a client with enough records pauses fetching for a second.
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
    """Run one of them."""
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
