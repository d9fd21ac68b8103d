"""Histories of a partition: the epochs that a store accepts.

    A store extends only its own history, or one that it has completely (``extend``).
    Of two that have diverged, the one with the newer last life wins: number first, then id
    (``wins_at``).  A store with the older one sets its records aside.
    A life begins when enough stores have promised to acknowledge no more records of older ones
    (``on_query``), and continues the newest history that they have.

Any two groups of stores that are large enough, one to acknowledge a record and one to promise, have
a store in common.  So a life that begins has every acknowledged record, and so does the newer
history.  It is the argument of Paxos and Raft, without a leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from dafka_core.model.epochs import (
    Epoch,
    EpochId,
    digest,
    divergence,
    epoch_at,
    follows,
    last_life,
    prefix,
    with_epoch,
)
from dafka_core.model.log_entries import LogEntry, Promise
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_partition import StorePartition

MAX_PROMISING: Final = 1_000  # promises in the disk's queue; requestors retry
HOSTING_ACKS: Final = 1  # a client's records are acknowledged when the hosting store has them


@dataclass
class Histories:
    """The histories of a store's partitions."""

    known: KnownStores
    hosting_id: int
    least_number: int
    write: Callable[[LogEntry], None]

    def __post_init__(self) -> None:
        self._promising: dict[tuple[TopicPartition, EpochId], m.HistoryQuery] = {}
        self._to_compare: dict[TopicPartition, None] = {}  # others may have another history
        self._to_fence: dict[TopicPartition, StorePartition] = {}  # an older life continues
        self._due = 0.0

    # -- records ---------------------------------------------------------------------------------

    def admits(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Return True if records may extend the store's own history, as far as it is known."""
        epoch, history = batch.epoch, partition.history
        winner = partition.winner.history if partition.winner else ()
        # The winner has replaced an older epoch from its own next one on.  Other losers still send
        # these records: two could fetch them from each other again, in turns and for ever.
        is_older = epoch is not None and epoch.life < last_life(winner)
        if is_older and epoch_at(winner, batch.end - 1) != epoch:
            self._to_compare[batch.tp] = None  # the winner may have lost its records since
            return False
        if epoch is None or not history or epoch == history[-1]:
            return True
        end = partition.next_offset
        known = epoch_at(history, batch.offset) if batch.offset < end else history[-1]
        if epoch == known or (known is not None and epoch.life > known.life and epoch.start >= end):
            return True
        self.differs(partition, epoch.life)
        return False

    def extend(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Add the epoch of the partition's next records; return False for another history's."""
        epoch = batch.epoch
        if epoch is None:
            return True
        if not follows(partition.history, epoch, batch.offset):
            self.differs(partition, epoch.life)
            return False
        self.begin(partition, epoch)
        return True

    def begin(self, partition: StorePartition, epoch: Epoch | None) -> None:
        """Continue the partition with an epoch."""
        if epoch is not None and epoch not in partition.history[-1:]:
            partition.history = with_epoch(partition.history, epoch)

    def next_epoch(self, partition: StorePartition, given: Epoch) -> Epoch | None:
        """Return the epoch that begins a client's life at an offset; None if a newer one has."""
        if partition.newest > given.life:
            return None
        return given._replace(parent=digest(prefix(partition.history, given.start)))

    def client_epoch(self, partition: StorePartition, offset: int) -> Epoch:
        """Return the epoch of clients' records from ``offset`` on, in this store's own life."""
        newest = partition.newest
        known = partition.client_epoch
        # An unfinished one may belong to a refused commit: a later commit begins elsewhere.
        if known is None or newest > known.life or known not in partition.history[-1:]:
            number = max(newest.number + 1, self.least_number)
            life = EpochId(number, self.hosting_id, HOSTING_ACKS)
            known = partition.client_epoch = Epoch(*life, offset, digest(partition.history))
        return known

    def ack(self, partition: StorePartition) -> list[Outgoing]:
        """Return the acknowledgement of durable records; empty if a newer life has taken over."""
        if not partition.durable:
            return []
        last = epoch_at(partition.history, partition.durable - 1)
        life = last.life if last else last_life(())
        topic, address = partition.tp
        if last is not None and life < partition.promised:
            self._to_fence[partition.tp] = partition
            return []
        return [m.EpochAck(topic, address, partition.durable - 1, self.known.store, life)]

    # -- other histories -------------------------------------------------------------------------

    def differs(self, partition: StorePartition, life: EpochId) -> None:
        """Note that a node has another history of a partition, whose last life is ``life``."""
        if life < last_life(partition.history):
            self._to_fence[partition.tp] = partition
        else:
            self._to_compare[partition.tp] = None

    def taken_over_at(self, partition: StorePartition, epoch: Epoch | None) -> int | None:
        """Return the offset from which a newer life replaces the store's records, if known."""
        history = partition.history
        if epoch is None or epoch.life <= partition.leading or epoch.life < partition.promised:
            return None
        parts = epoch.start < partition.next_offset
        return epoch.start if parts and epoch.continues(prefix(history, epoch.start)) else None

    def wins_at(self, partition: StorePartition, reply: m.HistoryReply) -> int | None:
        """Return the offset from which another store's history wins; None if it does not."""
        # A life with a promise continues the records that the store had then.
        life = last_life(reply.history)
        if life <= partition.leading or life < partition.promised:
            return None
        start = divergence(partition.history, reply.history)
        return start if start is not None and start < partition.next_offset else None

    def reply(
        self,
        partition: StorePartition,
        requestor: str,
        query: int = m.UNSOLICITED,
        last: Transaction | None = None,
    ) -> m.HistoryReply:
        """Return this store's durable history of a partition, and its last transaction."""
        end = partition.durable
        return m.HistoryReply(
            requestor,
            query,
            self.known.store,
            *partition.tp,
            end,
            partition.promised,
            prefix(partition.history, end),
            self.known.names,
            last if last and last.end <= end else None,  # the log may be ahead
        )

    def on_query(
        self, partition: StorePartition, query: m.HistoryQuery, last: Transaction | None
    ) -> list[Outgoing]:
        """Answer a question; one that asks for a promise when that is on disk."""
        asked = query.life
        if asked[:2] > partition.newest[:2] and len(self._promising) < MAX_PROMISING:
            # Holders of earlier promises may have written elsewhere, and needed fewer acks.
            acks = asked.acks
            if partition.promised > last_life(prefix(partition.history, partition.durable)):
                acks = min(acks, partition.promised.acks)
            partition.promised = asked._replace(acks=acks)
            self._promising[partition.tp, partition.promised] = query
            self.write(Promise(partition.tp, partition.promised))
        promised = partition.promised
        if promised[:2] == asked[:2] and (partition.tp, promised) in self._promising:
            return []
        return [self.reply(partition, query.requestor, query.query, last)]

    def on_promised(self, partition: StorePartition, life: EpochId) -> list[Outgoing]:
        """Answer the requestors of a promise that is on disk."""
        query = self._promising.pop((partition.tp, life), None)
        return [] if query is None else [self.reply(partition, query.requestor, query.query)]

    def on_tick(self, now: float) -> list[Outgoing]:
        """Ask other stores for histories, and notify producers of older lives."""
        if now < self._due or not (self._to_compare or self._to_fence):
            return []
        self._due = now + timing.HISTORY_INTERVAL_S
        messages: list[Outgoing] = [
            *(m.HistoryQuery(self.known.store, m.UNSOLICITED, *tp) for tp in self._to_compare),
            *(self.reply(each, tp.partition) for tp, each in self._to_fence.items()),
        ]
        self._to_compare.clear()
        self._to_fence.clear()
        return messages

    def deadline(self) -> float:
        """Return the time of the next question or notification."""
        return self._due if self._to_compare or self._to_fence else inf
