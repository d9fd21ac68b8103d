"""A check of a consumer's records: each once and in order, or a sentence."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from typing import Self

from dafka_core import Consumer, DafkaError
from dafka_core.model.records import Record, TopicPartition
from demo.compare import EXAMPLES, PartitionSum


class Received:
    """All that came of some topics, checked as it comes.

    Attributes:
        records: how many came, by topic.
        longest_wait_s: the longest time between two records since ``forget_waits``.
        values: the contents of the topic that is kept.
    """

    def __init__(self, kept: str) -> None:
        self.records: Counter[str] = Counter()
        self.values: list[bytes] = []
        self.longest_wait_s = 0.0
        self._kept = kept
        self._next: Counter[TopicPartition] = Counter()
        self._sums: dict[TopicPartition, hashlib._Hash] = {}
        self._wrong: list[str] = []
        self._came: float | None = None

    def take(self, record: Record, now: float) -> None:
        """Add the next record; ``now`` is when it came, in seconds."""
        tp = TopicPartition(record.topic, record.partition)
        expected = self._next[tp]
        if record.offset != expected:
            what = "twice" if record.offset < expected else f"where {expected} was to come"
            self._wrong.append(f"the reader got offset {record.offset} of {tp} {what}")
        self._next[tp] = record.offset + 1
        self.records[tp.topic] += 1
        value = record.value or b""
        if tp.topic == self._kept:
            self.values.append(value)
            return
        digest = hashlib.sha256(value).hexdigest()
        self._sums.setdefault(tp, hashlib.sha256()).update(digest.encode())
        if self._came is not None:
            self.longest_wait_s = max(self.longest_wait_s, now - self._came)
        self._came = now

    def forget_waits(self) -> float:
        """Return the longest pause between two records, and reset it."""
        waited_s, self.longest_wait_s = self.longest_wait_s, 0.0
        return waited_s

    def sums(self) -> dict[str, PartitionSum]:
        """The records and checksum of each partition; not of topics without values."""
        return {
            tp.partition: PartitionSum(tp.partition, self._next[tp], found.hexdigest())
            for tp, found in self._sums.items()
        }

    def wrong(self) -> list[str]:
        """The first records that were missing, doubled or out of order."""
        more = len(self._wrong) - EXAMPLES
        return [*self._wrong[:EXAMPLES], *([f"and {more} more like these"] if more > 0 else [])]


class Reading:
    """A consumer of some topics and the thread that reads from it; leaving the context ends both.

    Attributes:
        received: what has come.
        failure: the error with which it has ended, if it has.
    """

    def __init__(self, tower: str, topics: tuple[str, ...], kept: str) -> None:
        self.received = Received(kept)
        self.failure: DafkaError | None = None
        self._consumer = Consumer(tower=tower)
        for topic in topics:
            self._consumer.subscribe(topic)
        self._thread = threading.Thread(target=self._read, name="demo-reader")
        self._thread.start()

    def _read(self) -> None:
        try:
            for record in self._consumer:
                self.received.take(record, time.monotonic())
        except DafkaError as error:
            self.failure = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()
        self._thread.join()
