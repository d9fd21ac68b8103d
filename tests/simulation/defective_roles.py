"""Production roles, and their rules of histories, with one known defect each."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from dafka_core.errors import ProtocolError
from dafka_core.model.records import RecordBatch, TopicPartition, stamped_once
from dafka_core.model.values import Longs
from dafka_core.nodes.store_loop import StoreLoop
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import decode
from dafka_core.protocol.consumer_role import ConsumerRole, ReaderRole
from dafka_core.protocol.partition_fetcher import Delivered, FollowedPartition
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.record_limits import RecordLimits
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreDirectory
from dafka_core.protocol.store_role import StoreRole

CHUNK_COUNT = 4  # records in one chunk of a producer's memory; the C node has 256


# -- producers ------------------------------------------------------------------------------------


class CountsAcksTwice(ProducerRole):
    """An ACK does not say which store it is from, so each one counts."""

    _numbers = count()

    def _on_ack(self, store: str, end: int) -> None:
        super()._on_ack(f"{next(self._numbers)}", end)


class ForgetsAtOnce(ProducerRole):
    """Deletes what it has sent before any store has acknowledged it."""

    def _answer(self, fetch: m.Fetch) -> list[Outgoing]:
        recent = self.next_offset - CHUNK_COUNT
        return super()._answer(fetch) if fetch.sequence >= recent else []


class TellsOfMoreThanIsStored(ProducerRole):
    """Answers GET-HEADS with what it has published, stored or not."""

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        if isinstance(message, m.GetHeads) and message.topic == self.topic and self.next_offset:
            last = self.next_offset - 1
            return [m.DirectHead(message.requestor, self.topic, self.address, last)]
        return super().on_message(now, message, peer)


# -- stores ---------------------------------------------------------------------------------------


class AcknowledgesOnce(StoreRole):
    """Is silent about what it has acknowledged before."""

    def _take_acks(self) -> list[Outgoing]:
        said: dict[TopicPartition, int] = self.__dict__.setdefault("said", {})
        new: list[Outgoing] = []
        for ack in super()._take_acks():
            assert isinstance(ack, m.Ack | m.EpochAck)
            tp = ack.tp
            if ack.end > said.get(tp, 0):
                said[tp] = ack.end
                new.append(ack)
        return new


class AcknowledgesUnsynced(StoreLoop):
    """Acknowledges what the system has taken, and the disk has not."""

    def on_round(self, now: float) -> bool:
        role = self._role
        if role.pending_bytes and not self._log_writer.busy:
            entries = role.take_pending()
            self._log_writer.write(entries)
            self._mesh.send(role.on_stored(entries))
        return super().on_round(now)


class AnswersFromLater(StoreLoop):
    """Answers a FETCH of a missing record with a different record."""

    def _read(self, tp: TopicPartition, start: int, end: int) -> list[RecordBatch]:
        held = self._log.end(tp)
        if 0 < held <= start:
            found = super()._read(tp, held - 1, held)
            return [RecordBatch(tp, start, batch.values) for batch in found]
        return super()._read(tp, start, end)


# -- consumers ------------------------------------------------------------------------------------


class TakesPrefixes(ConsumerRole):
    """Trusts the subscription, which matches by prefix."""

    def _partition(self, tp: TopicPartition, latest: int) -> FollowedPartition | None:
        if not any(tp.topic.startswith(own) for own in self.topics):
            return None
        known, self.topics = self.topics, {**self.topics, tp.topic: None}
        try:
            return super()._partition(tp, latest)
        finally:
            self.topics = known


class LatestIsOneTooFew(ConsumerRole):
    """Takes the last record that a HEAD names for the next one."""

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        if isinstance(message, m.Head | m.DirectHead):
            tp = message.tp
            if tp not in self.partitions:
                self._partition(tp, message.sequence)
        return super().on_message(now, message, peer)


class SkipsGaps(ConsumerRole):
    """A record that a PUB socket drops is never fetched: the next one is accepted."""

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        known = self.partitions.get(batch.tp)
        if known is not None and batch.offset > known.next_offset and self.room:
            known.next_offset = batch.offset
        return super().on_batch(now, requestor, batch)


class TakesTwice(ConsumerRole):
    """Ignores that it has had a record already."""

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        known = self.partitions.get(batch.tp)
        if known is not None and batch.end <= known.next_offset and self.room:
            self.delivered.append(batch)
        return super().on_batch(now, requestor, batch)


# -- histories ------------------------------------------------------------------------------------


class FollowsAnything(FollowedPartition):
    """A consumer takes whatever comes next by its offset."""

    def is_stale(self, batch: RecordBatch) -> bool:
        return False

    def follow(self, now: float, batch: RecordBatch) -> Sequence[Delivered]:
        return self.take(now, batch)


def nobody_is_missing(*_: Any) -> None:
    """A producer resumes with whatever stores have answered."""


def stamped_by_itself(times: Longs | None, count: int, now_us: int, latest_us: int) -> Longs:
    """A store ignores the timestamps of arriving records."""
    return stamped_once(count, now_us)


# -- others ---------------------------------------------------------------------------------------


class WaitsForGreetings(ReaderRole):
    """Knows a store by its greeting only, not by its answers."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.directory = _GreetedOnly(address)


class _GreetedOnly(StoreDirectory):
    def on_message(self, now: float, message: m.Message) -> list[Outgoing]:
        if not isinstance(message, m.HeadsReply) or message.query == 0:
            return super().on_message(now, message)
        known = message.store in self.stores
        found = super().on_message(now, message)
        if not known:
            self._stores.pop(message.store, None)
        return found


class SendsAnySize(RecordLimits):
    """Sends peers what they cannot take, again and again: each time the connection ends."""

    def kept(self, message: Outgoing) -> list[Outgoing]:
        return [message]


class _StaleParse:
    """A frame that ends within a field is taken for what was received before."""

    def __init__(self) -> None:
        self._last: m.Message | None = None

    def __call__(self, frames: Any) -> m.Message:
        try:
            self._last = decode(frames)
        except ProtocolError:
            if self._last is None:
                raise
        return self._last
