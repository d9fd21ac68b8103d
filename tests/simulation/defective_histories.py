"""Production's rules of histories with one known defect each (``known_defects.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dafka_core.errors import DafkaError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, divergence, last_life
from dafka_core.model.log_entries import LogEntry
from dafka_core.model.records import RecordBatch
from dafka_core.model.timestamps import stamped_once
from dafka_core.model.values import Longs
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.protocol import messages as m
from dafka_core.protocol.followed_partition import Delivered, FollowedPartition
from dafka_core.protocol.histories import Histories
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_partition import StorePartition


class AcknowledgesZombies(Histories):
    """An older life's records are acknowledged after a newer one was promised that they are not."""

    def ack(self, partition: StorePartition) -> list[Outgoing]:
        promised, partition.promised = partition.promised, NO_LIFE
        acks = super().ack(partition)
        partition.promised = promised
        return acks


class ExtendsAnything(Histories):
    """Records are taken by their offsets, whosever they are."""

    def admits(self, partition: StorePartition, batch: RecordBatch) -> bool:
        return True

    def extend(self, partition: StorePartition, batch: RecordBatch) -> bool:
        if batch.epoch is not None and batch.epoch.life > last_life(partition.history):
            self.begin(partition, batch.epoch)
        return True


class LongerWins(Histories):
    """Of two histories that have parted, the one with more records is the partition's."""

    def taken_over_at(self, partition: StorePartition, epoch: Epoch | None) -> int | None:
        return None

    def wins_at(self, partition: StorePartition, reply: m.HistoryReply) -> int | None:
        if reply.end <= partition.next_offset:
            return None
        return divergence(partition.history, reply.history)

    def differs(self, partition: StorePartition, life: object) -> None:
        self._to_compare[partition.tp] = None


class TellsAnyway(AppendQueue):
    """A client's put succeeds even if its records were set aside since."""

    def _lost(self, entry: LogEntry) -> DafkaError | None:
        return None


class LivesOn(StorePartition):
    """Records that clients write after others were set aside have the same life as these."""

    def replace_from(self, start: int, end: int, life: EpochId) -> None:
        client_epoch = self.client_epoch
        super().replace_from(start, end, life)
        self.client_epoch, self.lost_to = client_epoch, NO_LIFE


class FollowsAnything(FollowedPartition):
    """A consumer takes whatever comes next by its offset."""

    def is_stale(self, batch: RecordBatch) -> bool:
        return False

    def follow(self, now: float, batch: RecordBatch) -> Sequence[Delivered]:
        return self.take(now, batch)


class CountsAnyonesAcks(ProducerRole):
    """ACKs count by their offsets, whosever records they are about."""

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        if isinstance(message, m.EpochAck):
            message = message.plain
        return super().on_message(now, message, peer)


def nobody_is_missing(*_: Any) -> None:
    """A producer resumes with whatever stores have answered."""


def stamped_by_itself(times: Longs | None, count: int, now_us: int, latest_us: int) -> Longs:
    """A store ignores the timestamps of arriving records."""
    return stamped_once(count, now_us)
