"""Partitions whose records clients write straight to this store, without a producer.

For such a partition the store does a producer's part: it publishes RECORD and HEAD, so that
consumers and other stores, also C nodes, get everything as if a producer had sent it.  It answers
FETCH for every partition anyway.
"""

from __future__ import annotations

from typing import Final

from dafka_core.protocol.messages import Head
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.records import RecordBatch, TopicPartition

HEAD_INTERVAL_S: Final = 1.0
"""RFC 46: a producer sends HEAD "at regular a interval"."""

ANNOUNCED_S: Final = 60.0
"""How long HEADs go on after the last write.  A node that has missed all of them asks with
GET-HEADS when it meets this store anew, as for any partition whose producer is gone."""

MAX_HOSTED: Final = 10_000
"""Partitions announced at one time: so many HEADs a second cost little.  Beyond it the store no
longer announces the one that was written to longest ago."""


class HostedPartitions:
    """Which partitions a store hosts, and when it publishes their heads again."""

    def __init__(self) -> None:
        self._until: dict[TopicPartition, float] = {}
        self._heads: dict[TopicPartition, Head] = {}
        self._due = 0.0

    def begin(self, now: float, tp: TopicPartition) -> None:
        """A client writes records into the partition."""
        self._until.pop(tp, None)
        self._until[tp] = now + ANNOUNCED_S
        if len(self._until) > MAX_HOSTED:
            self.end(next(iter(self._until)))

    def end(self, tp: TopicPartition) -> None:
        """The partition's records come from elsewhere: another node hosts it, or a producer."""
        if self._until:
            self._until.pop(tp, None)
            self._heads.pop(tp, None)

    def stored(self, batch: RecordBatch) -> list[Outgoing]:
        """What to publish when records are on disk: nothing unless they are hosted."""
        head = self.published(batch.tp, batch.end)
        return [OutgoingBatch(batch), *head] if head else []

    def published(self, tp: TopicPartition, end: int) -> list[Outgoing]:
        """The head to publish after the records up to ``end``: none unless they are hosted."""
        if tp not in self._until:
            return []
        head = self._heads[tp] = Head(*tp, end - 1)
        return [head]

    def on_tick(self, now: float) -> list[Outgoing]:
        """The heads that are due."""
        if not self._until or now < self._due:
            return []
        self._due = now + HEAD_INTERVAL_S
        for tp in [tp for tp, until in self._until.items() if until < now]:
            self.end(tp)
        return [*self._heads.values()]

    def deadline(self) -> float | None:
        """When heads are due next."""
        return self._due if self._until else None
