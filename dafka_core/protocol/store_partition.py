"""A partition as a store keeps it (docs/states.md), with or without a producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, before, last_life
from dafka_core.model.log_entries import GoOn, SetAside
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import partition_states as states
from dafka_core.protocol.messages import Head
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.partition_states import StoreState
from dafka_core.protocol.role import Outgoing, OutgoingBatch


@dataclass(slots=True)
class StorePartition:
    """One partition as a store keeps it."""

    fetcher: PartitionFetcher
    durable: int
    """Readers see the records before this offset: they are on disk."""
    visible_end: int
    """What ``durable`` will be when the log has done all that it was given, but for commits."""
    history: History = ()
    """Of all that the log has, or was given."""
    promised: EpochId = NO_LIFE
    """The newest life that was promised that nothing more of older ones is acknowledged."""
    staged: Transaction | None = None  # another store's, of which only the first part has come
    commits: int = 0  # on their way to the disk
    asides: int = 0  # the same: records that another history has won over
    hosted: Epoch | None = None  # of what clients write here, from its first record on
    lost_to: EpochId = NO_LIFE
    """The newest life of those whose records have replaced the store's."""
    too_large: int = -1
    """The offset of the record that it cannot take, as the last error said."""

    @property
    def newest(self) -> EpochId:
        """The newest life that the store has heard of."""
        return max(last_life(self.history), self.promised, self.lost_to)

    @property
    def state(self) -> StoreState:
        """The partition's state (docs/states.md)."""
        if self.commits or self.asides:
            return StoreState.COMMITTING
        if self.staged is not None:
            return StoreState.IN_PART
        if self.fetcher.next_offset < self.fetcher.head:
            return StoreState.BEHIND
        return StoreState.FOLLOWING

    def action(self, event: str) -> str:
        """What the store does at an event."""
        return states.STORE_TABLE[self.state][event].action

    def stops_at(self, offset: int) -> bool:
        """A record cannot be taken; whether it is next, and that is new."""
        is_news = self.too_large != offset == self.fetcher.next_offset
        if is_news:
            self.too_large = offset
        return is_news

    def go_on(self, start: int, history: History) -> None:
        """The records before ``start`` are to be had nowhere, and were of this history."""
        self.asides += 1
        self.hosted = self.staged = None
        self.history = history
        self.visible_end = start
        self.fetcher.begin(start)

    def on_begun(self, entry: SetAside | GoOn) -> None:
        """The log has set records aside."""
        self.asides -= 1
        if isinstance(entry, GoOn) and not self.asides:
            self.durable = entry.start

    def give_up(self, start: int, end: int, life: EpochId) -> None:
        """The records from ``start`` on are a newer life's, and it asks for them up to ``end``.

        What clients write here from now on is of a new life, too: their last one has said other
        records at these offsets.
        """
        self.lost_to = max(self.newest, life)
        self.hosted = None
        self.history = before(self.history, start)
        self.visible_end = self.fetcher.head = start
        self.durable = min(self.durable, start)
        self.staged = None
        self.fetcher.begin(start)
        self.fetcher.raise_head(end)


# Partitions whose records clients write straight to this store, without a producer.
#
# For such a partition the store does a producer's part: it publishes RECORD and HEAD, so that
# consumers and other stores, also C nodes, get everything as if a producer had sent it.  It answers
# FETCH for every partition anyway.


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
