"""Clients of the systems: ``python -m benchmarks.peers.clients KIND WHAT ADDRESS TOPIC ...``.

Each runs in its own process, connects, and prints ``READY``.  It begins after a line on standard
input, and prints a line of JSON at the end: seconds, CPU seconds, peak memory, and latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from benchmarks import processes

CHUNK: Final = 10_000  # records passed to a client at a time

WAIT_S: Final = 120.0

TIME: Final = struct.Struct(">q")
"""The beginning of a paced record: the monotonic time at which it was due, in nanoseconds."""

LOOK_S: Final = 0.0005
"""Interval of reading Dafka's ``acknowledged``, by which its latencies are too long at most."""

Batch = tuple[int, list[bytes]]  # values for a partition


class Plan:
    """Records to publish at a rate, or as fast as possible (0).

    Each begins with the time at which it was due, however late it is sent: a client that falls
    behind has longer latencies, not fewer records.
    """

    def __init__(self, records: int, size_bytes: int, per_second: float) -> None:
        self.records = records
        self.due_ns: list[int] = []
        self._padding = os.urandom(max(size_bytes - TIME.size, 0))
        self._step_ns = 1e9 / per_second if per_second else 0.0
        self._began_ns = time.monotonic_ns()

    def wait_s(self) -> float:
        """Return the time until the next record is due."""
        now_ns = time.monotonic_ns()
        due_ns = now_ns
        if self._step_ns:
            due_ns = self._began_ns + int(len(self.due_ns) * self._step_ns)
        self.due_ns.append(due_ns)
        return max(due_ns - now_ns, 0) / 1e9

    def value(self) -> bytes:
        """Return the record that is due."""
        return TIME.pack(self.due_ns[-1]) + self._padding

    def values(self) -> Iterator[bytes]:
        """Yield each record when it is due."""
        for _ in range(self.records):
            if wait_s := self.wait_s():
                time.sleep(wait_s)
            yield self.value()


class Client(Protocol):
    """A connection to one topic with some partitions, each of which has a first record."""

    def publish_many(self, batches: Iterable[Batch]) -> None:
        """Publish batches; return when all records are acknowledged."""

    def publish_each(self, batches: Iterable[Batch]) -> None:
        """Publish record by record; return when all are acknowledged."""

    def paced(self, plan: Plan) -> list[int]:
        """Publish records when they are due; return when each was acknowledged (ns), in order."""

    def consume(self, count: int, each: Callable[[bytes], object] | None) -> None:
        """Receive records of all partitions from the beginning, one by one."""


class DafkaClient:
    """A producer for each partition, or a consumer."""

    def __init__(
        self, address: str, topic: str, partitions: int, publishes: bool, acks: int = 1
    ) -> None:
        from dafka_core import Consumer, Producer

        self._producers = [
            Producer(topic, tower=address, acks=acks) for _ in range(partitions if publishes else 0)
        ]
        for producer in self._producers:
            producer.publish(b"first")
            producer.flush(WAIT_S)
        if not publishes:
            self._consumer = Consumer(tower=address, start="earliest")
            self._consumer.subscribe(topic)

    def publish_many(self, batches: Iterable[Batch]) -> None:
        """Publish with ``Producer.publish_many``, then flush."""
        for partition, values in batches:
            self._producers[partition].publish_many(values)
        self._flush()

    def publish_each(self, batches: Iterable[Batch]) -> None:
        """Publish with ``Producer.publish``, then flush."""
        for partition, values in batches:
            publish = self._producers[partition].publish
            for value in values:
                publish(value)
        self._flush()

    def paced(self, plan: Plan) -> list[int]:
        """Watch ``Producer.acknowledged`` while publishing."""
        (producer,) = self._producers
        acknowledged_ns: list[int] = []

        def note() -> None:
            new = producer.acknowledged - 1 - len(acknowledged_ns)  # without the first record
            acknowledged_ns.extend([time.monotonic_ns()] * new)

        with processes.repeated(note, LOOK_S):
            for value in plan.values():
                producer.publish(value)
            producer.flush(WAIT_S)
        note()
        return acknowledged_ns

    def consume(self, count: int, each: Callable[[bytes], object] | None) -> None:
        """Iterate over the consumer."""
        records = iter(self._consumer)
        for _, record in zip(range(count), records, strict=False):
            if each is not None and record.value is not None:
                each(record.value)

    def _flush(self) -> None:
        for producer in self._producers:
            producer.flush(WAIT_S)


class KafkaClient:
    """librdkafka with its defaults, but for a larger queue and fetches without pauses."""

    def __init__(self, address: str, topic: str, partitions: int, publishes: bool) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        self._topic = topic
        servers = {"bootstrap.servers": address, "message.max.bytes": 64 << 20}
        if publishes:
            queue = {
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
            self._producer = Producer({**servers, **queue})
            self._producer.list_topics(topic, timeout=WAIT_S)
            for partition in range(partitions):
                self._producer.produce(topic, b"first", partition=partition)
            self._flush()
            return
        options = {
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Otherwise a client with enough records pauses fetching for a second.
            "fetch.queue.backoff.ms": 0,
        }
        self._consumer = Consumer({**servers, **options})
        self._consumer.list_topics(topic, timeout=WAIT_S)
        self._consumer.assign([TopicPartition(topic, part, 0) for part in range(partitions)])

    def publish_many(self, batches: Iterable[Batch]) -> None:
        """Publish with ``produce_batch``, then flush."""
        for partition, values in batches:
            messages, taken = [{"value": value} for value in values], 0
            while taken < len(messages):
                taken += self._producer.produce_batch(
                    self._topic, messages[taken:], partition=partition
                )
                self._producer.poll(0 if taken == len(messages) else 0.01)
        self._flush()

    def publish_each(self, batches: Iterable[Batch]) -> None:
        """Publish with ``produce``, then flush."""
        produce, poll = self._producer.produce, self._producer.poll
        for partition, values in batches:
            for value in values:
                while True:
                    try:
                        produce(self._topic, value, partition=partition)
                        break
                    except BufferError:
                        poll(0.01)
            poll(0)
        self._flush()

    def paced(self, plan: Plan) -> list[int]:
        """Note the time in delivery callbacks."""
        acknowledged_ns: list[int] = []

        def note(error: object, _: object) -> None:
            if error is not None:
                raise RuntimeError(str(error))
            acknowledged_ns.append(time.monotonic_ns())

        with processes.repeated(lambda: self._producer.poll(0.1), pause_s=0):
            for value in plan.values():
                self._producer.produce(self._topic, value, partition=0, on_delivery=note)
            self._flush()
        return acknowledged_ns

    def consume(self, count: int, each: Callable[[bytes], object] | None) -> None:
        """Consume lists of messages, or single ones to time them."""
        found = 0
        # A large batch would wait for its last record.
        most = CHUNK if each is None else 1
        while found < count:
            messages = self._consumer.consume(min(most, count - found), timeout=WAIT_S)
            if not messages:
                raise TimeoutError(f"{found} of {count} came")
            for message in messages:
                if message.error():
                    raise RuntimeError(str(message.error()))
                if each is not None:
                    each(message.value() or b"")
            found += len(messages)

    def _flush(self) -> None:
        if self._producer.flush(WAIT_S):
            raise TimeoutError("not all was acknowledged")


class NatsClient:
    """nats-py with JetStream: a stream for each partition."""

    PENDING: Final = 4_000  # messages without an acknowledgement: nats-py's default

    def __init__(self, address: str, topic: str, partitions: int, publishes: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._subjects = [f"{topic}-{partition}" for partition in range(partitions)]
        self._loop.run_until_complete(self._connect(address, publishes))

    async def _connect(self, address: str, publishes: bool) -> None:
        import nats

        self._connection = await nats.connect(address)
        self._stream = self._connection.jetstream(publish_async_max_pending=self.PENDING)
        for subject in self._subjects if publishes else ():
            await self._stream.add_stream(name=subject, subjects=[subject])
            await self._stream.publish(subject, b"first")

    def publish_many(self, batches: Iterable[Batch]) -> None:
        """Publish with ``publish_async``, then wait for all."""
        self._loop.run_until_complete(self._publish(batches))

    publish_each = publish_many

    async def _publish(self, batches: Iterable[Batch]) -> None:
        acknowledgements = []
        for partition, values in batches:
            subject = self._subjects[partition]
            acknowledgements += [
                await self._stream.publish_async(subject, value, wait_stall=WAIT_S)
                for value in values
            ]
        await asyncio.gather(*acknowledgements)

    def paced(self, plan: Plan) -> list[int]:
        """Note the time in callbacks of acknowledgements."""
        acknowledged_ns: list[int] = []

        def note(_: object) -> None:
            acknowledged_ns.append(time.monotonic_ns())

        async def publish() -> None:
            for _ in range(plan.records):
                await asyncio.sleep(plan.wait_s())
                acknowledgement = await self._stream.publish_async(
                    self._subjects[0], plan.value(), wait_stall=WAIT_S
                )
                acknowledgement.add_done_callback(note)
            await self._stream.publish_async_completed()

        self._loop.run_until_complete(publish())
        return acknowledged_ns

    def consume(self, count: int, each: Callable[[bytes], object] | None) -> None:
        """Receive by ordered consumers."""
        self._loop.run_until_complete(self._consume(count, each))

    async def _consume(self, count: int, each: Callable[[bytes], object] | None) -> None:
        all_came, found = asyncio.Event(), 0

        async def receive(message: Any) -> None:
            nonlocal found
            found += 1
            if each is not None:
                each(message.data)
            if found == count:
                all_came.set()

        for subject in self._subjects:
            await self._stream.subscribe(subject, cb=receive, ordered_consumer=True)
        await asyncio.wait_for(all_came.wait(), WAIT_S)


KINDS: Final[dict[str, Callable[..., Client]]] = {
    "dafka": DafkaClient,
    "kafka": KafkaClient,
    "nats": NatsClient,
}


def batches(records: int, size_bytes: int, partitions: int) -> Iterator[Batch]:
    """Yield records with random contents, for the partitions in turn."""
    chunk = max(min(CHUNK, (16 << 20) // size_bytes, records // partitions), 1)
    values = [os.urandom(size_bytes) for _ in range(chunk)]
    for number, start in enumerate(range(0, records, chunk)):
        yield number % partitions, values[: records - start]


def main() -> None:
    """Run one client."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("what", choices=("many", "each", "paced", "consume", "poll", "receive"))
    parser.add_argument("address")
    parser.add_argument("topic")
    for number in ("records", "size_bytes", "partitions"):
        parser.add_argument(number, type=int)
    parser.add_argument("--per-second", type=float, default=0.0)
    parser.add_argument("--acks", type=int, help="of Dafka's producers")
    given = parser.parse_args()
    publishes = given.what in ("many", "each", "paced")
    more = {} if given.acks is None else {"acks": given.acks}
    client = KINDS[given.kind](given.address, given.topic, given.partitions, publishes, **more)
    print("READY", flush=True)
    sys.stdin.readline()
    latencies_ms: list[float] = []
    cpu_s, began_s = time.process_time(), time.perf_counter()
    match given.what:
        case "many" | "each":
            publish = client.publish_many if given.what == "many" else client.publish_each
            publish(batches(given.records, given.size_bytes, given.partitions))
        case "paced":
            plan = Plan(given.records, given.size_bytes, given.per_second)
            done_ns = zip(client.paced(plan), plan.due_ns, strict=True)
            latencies_ms = [(done - due) / 1e6 for done, due in done_ns]
        case "consume" | "poll":
            each = None if given.what == "consume" else len
            client.consume(given.records + given.partitions, each)
        case "receive":

            def receive(value: bytes) -> None:
                if len(value) >= TIME.size:  # the first record is shorter
                    latencies_ms.append((time.monotonic_ns() - TIME.unpack_from(value)[0]) / 1e6)

            client.consume(given.records + given.partitions, receive)
    taken = {
        "seconds": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - cpu_s,
        "peak_mb": processes.memory_mb(os.getpid(), "VmHWM"),
        "latencies_ms": latencies_ms,
    }
    print(json.dumps(taken), flush=True)
    os._exit(0)  # a client may wait for its server at its end


if __name__ == "__main__":
    main()
