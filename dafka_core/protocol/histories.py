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

from typing import Final

from dafka_core.model.epochs import (
    Epoch,
    EpochId,
    before,
    digest,
    epoch_at,
    follows,
    last_life,
    parting,
    with_epoch,
)
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_partition import StorePartition

MAX_PROMISING: Final = 1_000  # promises in the disk's queue; requestors retry
HOSTING_ACKS: Final = 1  # a client's records are acknowledged when the hosting store has them


class Histories:
    """The histories of a store's partitions."""

    def __init__(self, known: KnownStores, hosting_id: int, least_number: int) -> None:
        self._store = known.store
        self._known = known
        self._hosting_id = hosting_id
        self._least_number = least_number
        self._promising: dict[tuple[TopicPartition, EpochId], m.HistoryQuery] = {}
        self._unclear: dict[TopicPartition, None] = {}  # others may have another history
        self._outlived: dict[TopicPartition, StorePartition] = {}  # an older life continues
        self._due = 0.0

    # -- records ---------------------------------------------------------------------------------

    def admits(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Return True if records may extend the store's own history, as far as it is known."""
        epoch, history = batch.epoch, partition.history
        if epoch is not None and partition.has_lost(epoch):
            self._unclear[batch.tp] = None  # the winner may have lost its records since
            return False
        winner = partition.winner.history if partition.winner else ()
        # An older epoch ends where the winner's next one begins; late records exceed that.
        is_older = epoch is not None and epoch.life < last_life(winner)
        if is_older and epoch_at(winner, batch.end - 1) != epoch:
            self._unclear[batch.tp] = None
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

    def hosted(self, partition: StorePartition, offset: int) -> Epoch:
        """Return the epoch of clients' records from ``offset`` on, in this store's own life."""
        newest = partition.newest
        known = partition.hosted
        # An unfinished one may belong to a refused commit: a later commit begins elsewhere.
        if known is None or newest > known.life or known not in partition.history[-1:]:
            number = max(newest.number + 1, self._least_number)
            life = EpochId(number, self._hosting_id, HOSTING_ACKS)
            known = partition.hosted = Epoch(*life, offset, digest(partition.history))
        return known

    def ack(self, partition: StorePartition) -> list[Outgoing]:
        """Return the acknowledgement of durable records; empty if a newer life has taken over."""
        if not partition.durable:
            return []
        last = epoch_at(partition.history, partition.durable - 1)
        life = last.life if last else last_life(())
        tp = partition.tp
        if last is not None and life < partition.promised:
            self._outlived[tp] = partition
            return []
        return [m.EpochAck(tp.partition, tp.topic, partition.durable - 1, self._store, life)]

    # -- other histories -------------------------------------------------------------------------

    def differs(self, partition: StorePartition, life: EpochId) -> None:
        """Note that a node has another history of a partition, whose last life is ``life``."""
        if life < last_life(partition.history):
            self._outlived[partition.tp] = partition
        else:
            self._unclear[partition.tp] = None

    def taken_over_at(self, partition: StorePartition, epoch: Epoch | None) -> int | None:
        """Return the offset from which a newer life replaces the store's records, if known."""
        history = partition.history
        if epoch is None or epoch.life <= partition.leading or epoch.life < partition.promised:
            return None
        parts = epoch.start < partition.next_offset
        return epoch.start if parts and epoch.continues(before(history, epoch.start)) else None

    def wins_at(self, partition: StorePartition, reply: m.HistoryReply) -> int | None:
        """Return the offset from which another store's history wins; None if it does not."""
        # A life with a promise continues the records that the store had then.
        life = last_life(reply.history)
        if life <= partition.leading or life < partition.promised:
            return None
        start = parting(partition.history, reply.history)
        return start if start is not None and start < partition.next_offset else None

    def reply(
        self,
        partition: StorePartition,
        requestor: str,
        query: int = m.UNSOLICITED,
        last: Transaction | None = None,
    ) -> m.HistoryReply:
        """Return this store's durable history of a partition, and its last transaction."""
        tp, end = partition.tp, partition.durable
        history, names = before(partition.history, end), self._known.names
        last = last if last and last.end <= end else None  # the log may be ahead
        of = requestor, query, self._store, *tp
        return m.HistoryReply(*of, end, partition.promised, history, names, last)

    def on_query(self, partition: StorePartition, query: m.HistoryQuery) -> bool:
        """Process a question; return True if it asks for a promise that must be written first."""
        if query.life[:2] <= partition.newest[:2] or len(self._promising) >= MAX_PROMISING:
            return False
        # Holders of earlier promises may have written elsewhere, and needed fewer acks.
        acks = query.life.acks
        if partition.promised > last_life(before(partition.history, partition.durable)):
            acks = min(acks, partition.promised.acks)
        partition.promised = query.life._replace(acks=acks)
        self._promising[partition.tp, partition.promised] = query
        return True

    def waits(self, partition: StorePartition, query: m.HistoryQuery) -> bool:
        """Return True if the answer to a question waits for the disk."""
        life = partition.promised
        is_asked = life[:2] == query.life[:2]
        return is_asked and (partition.tp, life) in self._promising

    def on_promised(self, partition: StorePartition, life: EpochId) -> list[Outgoing]:
        """Answer the requestors of a promise that is on disk."""
        query = self._promising.pop((partition.tp, life), None)
        return [] if query is None else [self.reply(partition, query.requestor, query.query)]

    def on_tick(self, now: float) -> list[Outgoing]:
        """Ask other stores for histories, and notify producers of older lives."""
        if now < self._due or not (self._unclear or self._outlived):
            return []
        self._due = now + timing.HISTORY_INTERVAL_S
        asked = [m.HistoryQuery(self._store, m.UNSOLICITED, *tp) for tp in self._unclear]
        told = [self.reply(each, tp.partition) for tp, each in self._outlived.items()]
        self._unclear.clear()
        self._outlived.clear()
        return [*asked, *told]

    def deadline(self) -> float | None:
        """Return the time of the next question or notification."""
        return self._due if self._unclear or self._outlived else None
