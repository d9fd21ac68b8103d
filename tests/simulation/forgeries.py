"""False messages of every kind, about other partitions and a byzantine peer's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, digest
from dafka_core.model.records import (
    KnownStore,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    Transaction,
)
from dafka_core.model.values import Values
from dafka_core.nodes.sockets import send_packed
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import encode
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_SEQUENCE
from dafka_core.protocol.role import OutgoingBatch
from tests.simulation.clocks import YEAR_US, right_us
from tests.simulation.pub import Pub

if TYPE_CHECKING:
    from tests.simulation.byzantine import ByzantinePeer
    from tests.simulation.cluster import Cluster

STAMPS_US: Final = (-50 * YEAR_US, -YEAR_US, 0, 30_000_000, 100 * YEAR_US)
"""Offsets of forged timestamps from the right time."""

OWN_PARTITIONS: Final = 3  # partitions of a byzantine peer in each topic


class Forger:
    """Makes messages of one byzantine peer, half of them about its own partitions."""

    def __init__(self, cluster: Cluster, peer: ByzantinePeer, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self.own = [peer.new_address() for _ in range(OWN_PARTITIONS)]
        self._ends: dict[TopicPartition, int] = {}
        self._makers: tuple[Callable[[], m.Message | OutgoingBatch], ...] = (
            *(self._records, self._records, self._direct_records, self._many_records),
            *(self._head, self._head, self._direct_head, self._too_large),
            *(self._ack, self._epoch_ack, self._history_query, self._history_reply),
            *(self._fetch, self._fetch_batch, self._get_heads, self._heads_query),
            *(self._times_query, self._hello, self._store_hello, self._heads_reply),
            *(self._times_reply, self._endpoints, self._known),
        )

    def frames(self) -> list[list[bytes]]:
        return frames_of(self._chance.choice(self._makers)())

    def equivocation(self) -> tuple[list[list[bytes]], list[list[bytes]]]:
        """Two stories of what follows in a partition of its own, for different peers."""
        tp = TopicPartition(self._topic(), self._chance.choice(self.own))
        start = self._ends.get(tp, 0)
        count = self._chance.randint(1, 5)
        self._ends[tp] = start + count
        epochs = [self._epoch(tp, start), self._epoch(tp, start)]
        if self._chance.random() < 0.5:
            epochs[1] = epochs[0]
        stories = [self._batch(tp, start, count, epoch) for epoch in epochs]
        return frames_of(OutgoingBatch(stories[0])), frames_of(OutgoingBatch(stories[1]))

    # -- the subjects of the messages ------------------------------------------------------------

    def _topic(self) -> str:
        return self._chance.choice((*self._cluster.shape.topics, "nobody's"))

    def _tp(self) -> TopicPartition:
        if self._chance.random() < 0.5:
            return TopicPartition(self._topic(), self._chance.choice(self.own))
        tp = self._chance.choice(self._cluster.partitions)
        # Sometimes a partition of another topic that bears the name.
        return tp if self._chance.random() < 0.8 else TopicPartition(self._topic(), tp.partition)

    def _offset(self, tp: TopicPartition) -> int:
        end = len(self._cluster.checkers.published.get(tp, ())) or self._ends.get(tp, 0)
        near = (end, end + self._chance.randint(1, 50), max(end - 1, 0), end // 2, 0)
        far = (2**40, MAX_SEQUENCE - 100)
        return self._chance.choice((*near, *near, *far))

    def _node(self) -> str:
        """Somebody who asks."""
        others = [host.mesh.role.address for host in self._cluster.hosts if host.mesh]
        return self._chance.choice([*others, *self.own])

    def _store(self) -> str:
        return self._chance.choice([*(each.address for each in self._cluster.stores), *self.own])

    def _life(self) -> EpochId:
        number = self._chance.choice((0, 1, 2, 2**31, 2**32 - 1))
        return EpochId(number, self._chance.getrandbits(64), self._chance.choice((1, 1, 2)))

    def _history(self, tp: TopicPartition) -> tuple[Epoch, ...]:
        """Return a store's address, or an empty one."""
        store = self._chance.choice(self._cluster.stores)
        return store.disk.lives(tp).history if self._chance.random() < 0.7 else ()

    def _epoch(self, tp: TopicPartition, offset: int) -> Epoch | None:
        """Return no epoch, a store's, or a newer one that continues it, or seems to."""
        history = self._history(tp)
        if self._chance.random() < 0.3:
            return None
        if history and self._chance.random() < 0.4 and history[-1].start <= offset:
            return history[-1]
        start = self._chance.choice((0, offset // 2, offset))
        parent = self._chance.choice((0, digest(history), self._chance.getrandbits(64)))
        number = self._chance.choice((1, 2, 2**31, 2**32 - 1))
        return Epoch(*self._life()._replace(number=number), start, parent)

    def _batch(
        self, tp: TopicPartition, offset: int, count: int, epoch: Epoch | None
    ) -> RecordBatch:
        nonce = self._chance.getrandbits(32)
        values = [b"forged %x %d" % (nonce, i) for i in range(count)]
        time_us = right_us(self._cluster.world) + self._chance.choice(STAMPS_US)
        times = np.array([[count, time_us]], np.int64) if self._chance.random() < 0.7 else None
        transaction = None
        if self._chance.random() < 0.1:
            transaction = Transaction(self._chance.randint(0, 9), offset, offset + count + 3)
        return RecordBatch(tp, offset, Values.of(values), transaction, times, epoch)

    def _any_batch(self) -> RecordBatch:
        tp = self._tp()
        offset = self._offset(tp)
        return self._batch(tp, offset, self._chance.randint(1, 8), self._epoch(tp, offset))

    # -- messages --------------------------------------------------------------------------------

    def _records(self) -> m.Message | OutgoingBatch:
        batch = self._any_batch()
        if self._chance.random() < 0.3:
            return m.RecordMessage(*batch.tp, batch.offset, next(iter(batch.values)))
        return OutgoingBatch(batch)

    def _direct_records(self) -> m.Message | OutgoingBatch:
        batch, to = self._any_batch(), self._node()
        if self._chance.random() < 0.3:
            return m.DirectRecord(to, *batch.tp, batch.offset, next(iter(batch.values)))
        return OutgoingBatch(batch, to)

    def _many_records(self) -> m.Message:
        return m.DirectRecordBatches.of(self._node(), [self._any_batch(), self._any_batch()])

    def _head(self) -> m.Message:
        return m.Head(*(tp := self._tp()), self._offset(tp))

    def _direct_head(self) -> m.Message:
        return m.DirectHead(self._node(), *(tp := self._tp()), self._offset(tp))

    def _too_large(self) -> m.Message:
        tp = self._tp()
        return m.RecordTooLarge(self._node(), *tp, self._offset(tp), 2**30)

    def _ack(self) -> m.Message:
        tp, store = self._tp(), self._chance.choice(("", self._store()))
        return m.Ack(*tp, self._offset(tp), store)

    def _epoch_ack(self) -> m.Message:
        tp = self._tp()
        history = self._history(tp)
        life = history[-1].life if history else self._life()
        return m.EpochAck(*tp, self._offset(tp), self._store(), life)

    def _history_query(self) -> m.Message:
        life = self._chance.choice((NO_LIFE, self._life()))
        return m.HistoryQuery(self._node(), self._chance.randint(0, 9), *self._tp(), life)

    def _history_reply(self) -> m.Message:
        tp = self._tp()
        to = self._chance.choice((tp.partition, self._node()))
        epoch = self._epoch(tp, 0)
        history = self._history(tp) or (() if epoch is None else (epoch._replace(start=0),))
        stores = (self._store(),)
        end = self._offset(tp)
        of = to, self._chance.choice((0, 1, 2)), self._store(), *tp
        return m.HistoryReply(*of, end, self._life(), history, stores)

    def _fetch(self) -> m.Message:
        tp = self._tp()
        return m.Fetch(self._node(), *tp, self._offset(tp), MAX_FETCH_COUNT)

    def _fetch_batch(self) -> m.Message:
        entries = (
            PartitionInfo(*self._tp(), 0, MAX_FETCH_COUNT),
            PartitionInfo(*self._tp(), 5, 10),
        )
        return m.FetchBatch(self._store(), self._node(), entries)

    def _get_heads(self) -> m.Message:
        return m.GetHeads(self._chance.choice(("", self._topic())), self._node())

    def _heads_query(self) -> m.Message:
        topics = self._chance.choice(((), (self._topic(),)))
        return m.HeadsQuery(self._node(), self._chance.randint(0, 9), topics)

    def _times_query(self) -> m.Message:
        of = self._node(), self._chance.randint(0, 9)
        return m.TimesQuery(*of, *self._tp(), 0, 10**6)

    def _hello(self) -> m.Message:
        return m.ConsumerHello(self._store(), self._node(), (self._topic(),))

    def _store_hello(self) -> m.Message:
        return m.StoreHello(self._chance.choice(("", self._node())), self._store())

    def _heads_reply(self) -> m.Message:
        tp = self._tp()
        entries = (PartitionInfo(*tp, 0, self._offset(tp) + 1, self._life()),)
        return m.HeadsReply(self._node(), self._chance.randint(0, 9), self._store(), 0, 1, entries)

    def _times_reply(self) -> m.Message:
        of = self._node(), self._chance.randint(0, 9), self._store()
        return m.TimesReply(*of, 0, 1, ((0, 0), (10, 10)))

    def _endpoints(self) -> m.Message:
        return m.StoreEndpoints(self._node(), self._store(), ("grpc://127.0.0.1:1",))

    def _known(self) -> m.Message:
        entries = tuple(KnownStore(store, "tcp://nowhere:1", 1, True) for store in self.own)
        return m.StoresKnown(self._node(), self._store(), entries)


def frames_of(message: m.Message | OutgoingBatch) -> list[list[bytes]]:
    """The frames of a message; of records there may be several."""
    if not isinstance(message, OutgoingBatch):
        return [encode(message)]
    pub = Pub()
    send_packed(cast("Any", pub), message)
    return [[*pair] for pair in zip(pub.frames[::2], pub.frames[1::2], strict=True)]
