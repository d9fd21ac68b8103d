"""Histories of a partition: the epochs a store accepts, and the one a reader follows.

    A store extends its own history only, or one that it has the whole of (``extend``).
    Of two that have parted, the one with the newer last life is the partition's: number first,
    then id (``wins_at``).  The store with the other one sets its records aside.
    A life begins when enough stores have promised that they acknowledge nothing more to older
    ones (``on_query``), and goes on from the newest history that they have.

Any two groups of stores that are large enough, one to acknowledge a record and one to promise, have
a store in common.  So a life that begins has all that was ever acknowledged, and the newer history
has it, too.  It is Paxos' and Raft's argument, without a leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from dafka_core.model.epochs import (
    Epoch,
    EpochId,
    History,
    before,
    digest,
    epoch_at,
    follows,
    last_life,
    parted_by,
    parting,
    with_epoch,
)
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_partition import StorePartition

ASK_INTERVAL_S: Final = 0.5
"""How often a store asks the others for a history that differs from its own, and tells an older
life's producer of the newer one: often enough for people, seldom enough for the mesh."""

MAX_PROMISING: Final = 1_000
"""Questions whose promise is on its way to the disk; who asks asks again."""

HOSTING_ACKS: Final = 1
"""A client's records are acknowledged when the store that hosts them has them."""

TOLD: Final = 0
"""The number of no query: that of a reply that nobody has asked for."""


class Histories:
    """The histories of a store's partitions."""

    def __init__(self, known: KnownStores, hosting_id: int, least_number: int) -> None:
        self._store = known.store
        self._known = known
        self._hosting_id = hosting_id
        self._least_number = least_number
        self._promising: dict[tuple[TopicPartition, EpochId], m.HistoryQuery] = {}
        self._unclear: dict[TopicPartition, None] = {}  # others may have another history
        self._outlived: dict[TopicPartition, StorePartition] = {}  # an older life goes on
        self._due = 0.0

    # -- records ---------------------------------------------------------------------------------

    def admits(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Whether records may be of the store's own history, as far as it knows yet."""
        epoch, history = batch.epoch, partition.history
        if epoch is None or not history or epoch == history[-1]:
            return True
        end = partition.fetcher.next_offset
        known = epoch_at(history, batch.offset) if batch.offset < end else history[-1]
        if epoch == known or (known is not None and epoch.life > known.life and epoch.start >= end):
            return True
        self.differs(partition, epoch.life)
        return False

    def extend(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Adds the epoch of the partition's next records, unless they are another history's."""
        epoch = batch.epoch
        if epoch is None:
            return True
        if not follows(partition.history, epoch, batch.offset):
            self.differs(partition, epoch.life)
            return False
        self.begin(partition, epoch)
        return True

    def begin(self, partition: StorePartition, epoch: Epoch | None) -> None:
        """The partition goes on with an epoch."""
        if epoch is not None and epoch not in partition.history[-1:]:
            partition.history = with_epoch(partition.history, epoch)

    def hosted(self, partition: StorePartition, offset: int) -> Epoch:
        """The epoch of what clients write from ``offset`` on to this store, in its own life."""
        newest = partition.newest
        known = partition.hosted
        # One that has not begun may be that of a refused commit: who comes later begins elsewhere.
        if known is None or newest > known.life or known not in partition.history[-1:]:
            number = max(newest.number + 1, self._least_number)
            life = EpochId(number, self._hosting_id, HOSTING_ACKS)
            known = partition.hosted = Epoch(*life, offset, digest(partition.history))
        return known

    def ack(self, partition: StorePartition) -> list[Outgoing]:
        """The acknowledgement of what is on disk; none to a life that a newer one takes over."""
        if not partition.durable:
            return []
        last = epoch_at(partition.history, partition.durable - 1)
        life = last.life if last else last_life(())
        tp = partition.fetcher.tp
        if last is not None and life < partition.promised:
            self._outlived[tp] = partition
            return []
        return [m.EpochAck(tp.partition, tp.topic, partition.durable - 1, self._store, life)]

    # -- other histories -------------------------------------------------------------------------

    def differs(self, partition: StorePartition, life: EpochId) -> None:
        """Somebody has another history of a partition, whose last life is ``life``."""
        if life < last_life(partition.history):
            self._outlived[partition.fetcher.tp] = partition
        else:
            self._unclear[partition.fetcher.tp] = None

    def taken_over_at(self, partition: StorePartition, epoch: Epoch | None) -> int | None:
        """From where on a newer life's records replace the store's; None if that is not clear."""
        history = partition.history
        if epoch is None or epoch.life <= last_life(history) or epoch.life < partition.promised:
            return None
        parts = epoch.start < partition.fetcher.next_offset
        return epoch.start if parts and epoch.continues(before(history, epoch.start)) else None

    def wins_at(self, partition: StorePartition, reply: m.HistoryReply) -> int | None:
        """From where on another store's history is the partition's; None if it is not."""
        # A life that was promised something goes on from what the store had then.
        life = last_life(reply.history)
        if life <= last_life(partition.history) or life < partition.promised:
            return None
        start = parting(partition.history, reply.history)
        return start if start is not None and start < partition.fetcher.next_offset else None

    def reply(
        self,
        partition: StorePartition,
        requestor: str,
        query: int = TOLD,
        last: Transaction | None = None,
    ) -> m.HistoryReply:
        """What this store has on disk of a partition's lives, and its last transaction."""
        tp, end = partition.fetcher.tp, partition.durable
        history, names = before(partition.history, end), self._known.names
        last = last if last and last.end <= end else None  # the log may be ahead
        of = requestor, query, self._store, *tp
        return m.HistoryReply(*of, end, partition.promised, history, names, last)

    def on_query(self, partition: StorePartition, query: m.HistoryQuery) -> bool:
        """Takes a question; True if it asks for a promise that is to be written first."""
        if query.life[:2] <= partition.newest[:2] or len(self._promising) >= MAX_PROMISING:
            return False
        # Those promised something before may have written elsewhere, and needed fewer acks.
        acks = query.life.acks
        if partition.promised > last_life(before(partition.history, partition.durable)):
            acks = min(acks, partition.promised.acks)
        partition.promised = query.life._replace(acks=acks)
        self._promising[partition.fetcher.tp, partition.promised] = query
        return True

    def waits(self, partition: StorePartition, query: m.HistoryQuery) -> bool:
        """Whether the answer to a question waits for the disk."""
        life = partition.promised
        is_asked = life[:2] == query.life[:2]
        return is_asked and (partition.fetcher.tp, life) in self._promising

    def on_promised(self, partition: StorePartition, life: EpochId) -> list[Outgoing]:
        """A promise is on disk: answers who has asked for it."""
        query = self._promising.pop((partition.fetcher.tp, life), None)
        return [] if query is None else [self.reply(partition, query.requestor, query.query)]

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks other stores for histories, and tells producers that their life is over."""
        if now < self._due or not (self._unclear or self._outlived):
            return []
        self._due = now + ASK_INTERVAL_S
        asked = [m.HistoryQuery(self._store, TOLD, *tp) for tp in self._unclear]
        told = [self.reply(each, tp.partition) for tp, each in self._outlived.items()]
        self._unclear.clear()
        self._outlived.clear()
        return [*asked, *told]

    def deadline(self) -> float | None:
        """When there is something to ask or to tell."""
        return self._due if self._unclear or self._outlived else None


class FollowedHistory:
    """The epochs of the records that one reader of one partition has got.

    Records without an epoch, C nodes', go with any.
    """

    __slots__ = ("_unknown_from", "asked_s", "epochs")

    def __init__(self) -> None:
        self.epochs: History = ()
        self.asked_s = -inf
        """When stores were last asked for the partition's history."""
        self._unknown_from: int | None = None

    def is_stale(self, batch: RecordBatch) -> bool:
        """Whether a newer life has taken over from the one that has written these records."""
        epoch, known = batch.epoch, self.epochs
        return epoch is not None and epoch.life < last_life(known) and epoch not in known

    def parted_by(self, epoch: Epoch | None, position: int) -> int | None:
        """From where on what was read before ``position`` is not the partition's any more.

        ``epoch`` is that of records which have come; None if they can follow.
        """
        if epoch is None or epoch in self.epochs[-1:]:
            return None
        return parted_by(self.epochs, epoch, self.read_to(position))

    def read_to(self, position: int) -> int:
        """Up to where records were read, by a reader at ``position``: none that was passed over."""
        return position if self._unknown_from is None else min(position, self._unknown_from)

    def pass_over(self, start: int) -> None:
        """The reader goes on without records from ``start`` on, of whatever lives they are."""
        if self._unknown_from is None:
            self._unknown_from = start

    def take(self, taken: Sequence[RecordBatch]) -> tuple[Sequence[RecordBatch], int | None]:
        """Those that follow what was read; and from where on that has parted, if the next do not.

        They are the next ones by their offsets.
        """
        for index, batch in enumerate(taken):
            epoch = batch.epoch
            if epoch is None:
                self.pass_over(batch.offset)
                continue
            if epoch in self.epochs[-1:]:
                self._unknown_from = None  # all before was of this life, too
                continue
            if self.epochs and not self._follows(epoch, batch.offset):
                # The older life's records at its first offsets were next, or came before.
                known = epoch.continues(self.epochs)
                return taken[:index], epoch.start if known else self.epochs[0].start
            self._unknown_from = None
            self.epochs = with_epoch(self.epochs, epoch)
        return taken, None

    def _follows(self, epoch: Epoch, offset: int) -> bool:
        unknown = self._unknown_from
        if unknown is not None and epoch.start >= unknown:
            return epoch.life > last_life(self.epochs)  # lives between may have been passed over
        return epoch.start == offset and epoch.continues(self.epochs)

    def go_back(self, start: int) -> None:
        """The reader goes on at ``start``, where another history has won."""
        self.epochs = before(self.epochs, start)
        self._unknown_from = None
