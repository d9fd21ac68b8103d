"""The numbers by which Kafka's clients know a topic's partitions."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dafka_core.records import TopicPartition


class NumberedPartition(NamedTuple):
    """A partition of a topic, and its number; ``gateway`` takes what Kafka's producers send to it.

    ``address`` names the partition, and ``gateway`` is its store's address.
    """

    topic: str
    number: int
    address: str
    gateway: str

    @property
    def tp(self) -> TopicPartition:
        """The topic and the partition."""
        return TopicPartition(self.topic, self.address)


class PartitionNumbers:
    """The partitions of all topics that have numbers, as this gateway knows them."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._topics: dict[str, list[NumberedPartition]] = {}

    def topics(self) -> Collection[str]:
        """The topics that have numbers."""
        return tuple(self._topics)

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """A topic's partitions by their numbers; none if it has no numbers."""
        return tuple(self._topics.get(topic, ()))

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        """The partition of this number."""
        found = self._topics.get(topic, ())
        return found[number] if 0 <= number < len(found) else None

    async def create(self, topic: str, count: int) -> None:
        """Has the topic have at least ``count`` partitions."""
        found = self._topics.setdefault(topic, [])
        for number in range(len(found), count):
            address = uuid.uuid4().hex.upper()
            found.append(NumberedPartition(topic, number, address, self._store))

    async def refresh(self) -> None:
        """Gives numbers to what stores have of the topics and has none."""
