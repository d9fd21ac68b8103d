"""Which topics and partitions a query reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dafka_core.records import PartitionInfo, TopicPartition


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Exactly one of a set of topics, a pattern for them, and a set of partitions.

    Topics are compared whole: RFC 46 subscribes by prefix, and a query for ``hello`` must not be
    given ``hello2``.
    """

    topics: frozenset[str] = frozenset()
    pattern: str = ""
    partitions: frozenset[TopicPartition] = frozenset()

    @property
    def asked(self) -> list[str] | None:
        """The topics to ask the stores for; ``None`` for all of them."""
        if self.pattern:
            return None
        return sorted(self.topics or {key.topic for key in self.partitions})

    def has_topic(self, topic: str) -> bool:
        """Whether some partition of ``topic`` may be read."""
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(key.topic == topic for key in self.partitions)

    def has(self, key: TopicPartition) -> bool:
        """Whether this partition is read."""
        return key in self.partitions if self.partitions else self.has_topic(key.topic)

    def of(self, found: list[PartitionInfo]) -> dict[TopicPartition, PartitionInfo]:
        """What is selected of what the stores hold."""
        known = {TopicPartition(info.topic, info.partition): info for info in found}
        return {key: known[key] for key in sorted(known) if self.has(key)}
