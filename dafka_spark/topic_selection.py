"""Which topics and partitions a query reads (``ConsumerStrategy`` in Spark's Kafka connector)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dafka_core.model.names import INTERNAL, escape
from dafka_core.model.records import PartitionInfo, TopicPartition

EVERY_TOPIC: Final = "(?s:.*)(?#also those of our own programs)"
"""A pattern.  Those that users write match no topic that begins with ``INTERNAL``."""


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
        """The topics to ask the stores for; None for all of them."""
        if self.pattern:
            return None
        return sorted(self.topics or {tp.topic for tp in self.partitions})

    def has(self, tp: TopicPartition) -> bool:
        """Whether this partition is read."""
        if self.pattern:
            is_hidden = tp.topic.startswith(INTERNAL) and self.pattern != EVERY_TOPIC
            return not is_hidden and re.fullmatch(self.pattern, escape(tp.topic)) is not None
        return tp.topic in self.topics or tp in self.partitions

    def has_of(self, topic: str) -> bool:
        """Whether partitions of this topic are read."""
        return self.has(TopicPartition(topic, "")) or topic in {tp.topic for tp in self.partitions}

    def missing(self, held: Iterable[TopicPartition]) -> list[TopicPartition]:
        """What is named and not among these; a topic as one without a partition."""
        found = set(held)
        topics = self.topics - {tp.topic for tp in found}
        return sorted([*(TopicPartition(topic, "") for topic in topics), *self.partitions - found])

    def of(self, infos: Iterable[PartitionInfo]) -> list[PartitionInfo]:
        """Those of the partitions that are read."""
        return [info for info in infos if self.has(info.tp)]
