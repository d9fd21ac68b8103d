"""Partitions whose writers put records straight into this store, without a producer's node.

The store then does a hosted partition's producer's part: it publishes RECORD and HEAD, so that
consumers and other stores, also C nodes, get everything as if a producer had sent it.  FETCH
it answers for every partition anyway.
"""

from __future__ import annotations

from typing import Final

from dafka_core.protocol.messages import Head
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.records import RecordBatch, TopicPartition

HEAD_INTERVAL_S: Final = 1.0
"""RFC 46: a producer publishes HEAD "at regular a interval"."""

ANNOUNCED_S: Final = 60.0
"""How long HEADs go on after the last put.  Whoever has missed all of them asks with GET-HEADS
when it meets this store anew, as for any partition whose producer is gone."""

MAX_HOSTED: Final = 10_000
"""Partitions announced at one time: so many HEADs a second cost little.  Beyond it the one put to
longest ago is announced no more."""


class HostedPartitions:
    """Which partitions are hosted, and when their heads are to be published again."""

    def __init__(self) -> None:
        self._until: dict[TopicPartition, float] = {}
        self._heads: dict[TopicPartition, Head] = {}
        self._due = 0.0

    def begin(self, now: float, tp: TopicPartition) -> None:
        """A writer puts records into the partition."""
        self._until.pop(tp, None)
        self._until[tp] = now + ANNOUNCED_S
        if len(self._until) > MAX_HOSTED:
            self._end(next(iter(self._until)))

    def end(self, tp: TopicPartition) -> None:
        """The partition's records come from elsewhere: its writer has another host."""
        if self._until:
            self._end(tp)

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
        for key in [key for key, until in self._until.items() if until < now]:
            self._end(key)
        return [*self._heads.values()]

    def deadline(self) -> float | None:
        """When heads are due next."""
        return self._due if self._until else None

    def _end(self, key: TopicPartition) -> None:
        self._until.pop(key, None)
        self._heads.pop(key, None)
