"""What a store's loop does between its role and its log: records to the disk, answers from it.

It owns no socket and no thread, so the simulator runs it over a disk of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dafka_core.errors import StoreError
from dafka_core.log_entries import LogEntry
from dafka_core.protocol.messages import ConsumerHello, Fetch, GetHeads, HeadsQuery, TimesQuery
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_requests import (
    AnnounceHeads,
    Work,
    announcement,
    goes_on,
    head_messages,
    heads_reply,
    times_reply,
)
from dafka_core.protocol.store_role import StoreRole
from dafka_core.protocol.transactions import PublishCommitted, split_by_transaction
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition, TransactionState

MAX_PENDING_BYTES: Final = 32 << 20
"""Records waiting for the disk; no more are received beyond it."""

SERVE_COUNT: Final = 8_192
SERVE_BYTES: Final = 4 << 20
"""Records read and sent per turn: between turns records are stored and others are served."""

_log = logging.getLogger("dafka.store")


class Readable(Protocol):
    """What is asked of a log (``storage.Log``)."""

    def end(self, tp: TopicPartition) -> int:
        """See ``Log.end``."""

    def transaction_state(self, tp: TopicPartition) -> TransactionState:
        """See ``Log.transaction``."""

    def partitions(self, topic: str | None = None) -> list[PartitionInfo]:
        """See ``Log.partitions``."""

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        max_records: int,
        max_bytes: int,
    ) -> Sequence[RecordBatch]:
        """See ``Log.read``."""

    def times(self, tp: TopicPartition, start: int, end: int) -> list[tuple[int, int]]:
        """See ``Log.times``."""


class Appends(Protocol):
    """What has the log write beside the loop (``appending.LogWriter``)."""

    @property
    def busy(self) -> bool:
        """Whether a group is on its way to the disk."""

    def append(self, entries: list[LogEntry]) -> None:
        """Takes a group; must not be busy."""


class StoreLoop:
    """What the loop of a store does each round.

    Args:
        send: publishes messages.
        receive: says whether to take messages from peers at all.
        has_subscriber: whether any peer takes a topic's records.
    """

    def __init__(
        self,
        role: StoreRole,
        log: Readable,
        appender: Appends,
        *,
        send: Callable[[list[Outgoing]], None],
        receive: Callable[[bool], None],
        has_subscriber: Callable[[str], bool],
    ) -> None:
        self._role = role
        self._log = log
        self._appender = appender
        self._send = send
        self._receive = receive
        self._has_subscriber = has_subscriber

    def on_round(self, now: float) -> bool:
        """Hands records to the disk and serves one request; True if more requests wait."""
        if self._role.pending_bytes and not self._appender.busy:
            self._appender.append(self._role.take_pending())
        self._receive(self._role.pending_bytes < MAX_PENDING_BYTES)
        request = self._role.requests.take()
        if request is not None:
            try:
                self._send(self._answer(request))
            except StoreError as error:
                # Damage concerns one partition; the others go on. Nothing wrong is ever sent.
                _log.error("%s", error)
        return bool(self._role.requests)

    def _answer(self, request: Work) -> list[Outgoing]:
        match request:
            case Fetch():
                return self._records(request)
            case GetHeads():
                return head_messages(request.requestor, self._log.partitions(request.topic or None))
            case ConsumerHello():
                return head_messages(request.consumer, self._held(request.topics))
            case HeadsQuery():
                infos = self._held(request.topics) if request.topics else self._log.partitions()
                return heads_reply(request, self._role.address, infos)
            case TimesQuery():
                times = self._log.times(request.tp, request.sequence, request.end)
                return times_reply(request, self._role.address, times)
            case AnnounceHeads():
                return announcement(self._log.partitions())
            case PublishCommitted():
                return self._published(request)

    def _held(self, topics: tuple[str, ...]) -> list[PartitionInfo]:
        return [info for topic in topics for info in self._log.partitions(topic)]

    def _published(self, publish: PublishCommitted) -> list[Outgoing]:
        """What comes next of what was committed here, and when it was all its head."""
        if not self._has_subscriber(publish.tp.topic):
            # Whoever comes later hears of the head, and asks. Reading a large unit takes a while.
            return [*self._role.on_published(publish)]
        batches = self._read(publish.tp, publish.start, publish.end)
        end = batches[-1].end if batches else publish.end
        records: list[Outgoing] = [
            OutgoingBatch(part)
            for batch in batches
            for part in split_by_transaction(batch, publish.transactions)
        ]
        if end < publish.end:
            self._role.requests.put_back(publish.rest(end))
            return records
        return [*records, *self._role.on_published(publish)]

    def _read(self, tp: TopicPartition, start: int, end: int) -> list[RecordBatch]:
        """The first records of a range, as many as are sent at once; none if it is not held."""
        batches = self._log.read(tp, start, end, max_records=SERVE_COUNT, max_bytes=SERVE_BYTES)
        # Not before what was asked for: a requestor can do nothing with what follows a gap.
        if not batches or batches[0].offset != start:
            return []
        return [*batches]

    def _records(self, fetch: Fetch) -> list[Outgoing]:
        batches = self._read(fetch.tp, fetch.sequence, fetch.end)
        if not batches:
            return []
        end = batches[-1].end
        if end < fetch.end:
            rest = Fetch(fetch.partition, fetch.requestor, fetch.topic, end, fetch.end - end)
            self._role.requests.put_back(rest)
        # Asked for after reading: a unit that is not the last any more is sent as older ones are.
        marker = self._log.transaction_state(fetch.tp).transaction
        transactions = (marker,) if marker else ()
        records: list[Outgoing] = [
            OutgoingBatch(part, fetch.requestor)
            for batch in batches
            for part in split_by_transaction(batch, transactions)
        ]
        if end == fetch.end:
            records.extend(goes_on(fetch, self._log.end(fetch.tp)))
        return records
