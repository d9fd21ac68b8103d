"""The loop of a store between role and log, and the thread that writes the log.

It owns no socket and no thread, so the simulation runs it over a disk of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Final

from dafka_core.errors import DafkaError, DiskFullError, StoreError
from dafka_core.model.log_entries import LogEntry
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.nodes.disk_watch import DiskWatch
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.threads import NodeThread
from dafka_core.protocol import store_requests
from dafka_core.protocol.messages import (
    HEADS,
    ConsumerHello,
    Fetch,
    GetHeads,
    HeadsQuery,
    HeadsReply,
    TimesQuery,
    TimesReply,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_requests import PublishCommitted, split_by_transaction
from dafka_core.protocol.store_role import StoreRole
from dafka_core.storage import Log
from dafka_core.system.closing import ProcessBound

CHECK_INTERVAL_S: Final = 1.0
"""Interval at which an idle writer checks that the log exists and can be read.  A failure must be
noticed soon: readers keep sending requests."""

Outcomes = list[DafkaError | None]
"""The log's outcome of each entry: None for success."""


class LogWriter(ProcessBound):
    """A thread in which the log writes one group of entries at a time.

    Args:
        log: no other thread writes to it.
        done: called in the thread after each group: with the entries and their outcomes when they
            are on disk, synced; with the error if none of them is.  After an error no group is
            written any more, but a group waits for room while the disk is full.  Also called,
            without entries, if the log's directory is gone or unreadable.
    """

    def __init__(
        self, log: Log, done: Callable[[list[LogEntry], Outcomes | BaseException], None]
    ) -> None:
        self._log = log
        self._done = done
        self._groups: SimpleQueue[list[LogEntry] | None] = SimpleQueue()
        self.busy = False
        """True while a group is being written."""
        self.watch = DiskWatch(log.directory)
        """Its observations of the disk."""
        self.on_room: Callable[[DiskFullError | None], None] = lambda _: None
        """Called in the thread with an error if the disk becomes full, and with None if it has
        room again."""
        self._thread = NodeThread("dafka-log-writer", self._run)
        self._thread.start()

    def write(self, entries: list[LogEntry]) -> None:
        """Write a group in the thread; only while it is not ``busy``."""
        assert not self.busy
        self.busy = True
        self._groups.put(entries)

    def close(self) -> None:
        """End after the current group."""
        self._groups.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entries := self._next_group()) is not None:
            try:
                if not entries:
                    self._log.check_in_place()
                    self.watch.check_space(time.monotonic())
                    continue
                self.watch.begin()
                outcomes = self._written(entries)
                if outcomes is None:
                    return
                self.watch.end(entries, outcomes)
            except BaseException as error:  # noqa: BLE001 -- the store fails with it
                self.watch.fail(error)
                self._done(entries, error)
                return
            self.busy = False
            self._done(entries, outcomes)
            del entries, outcomes  # the thread keeps no group while it waits for the next one

    def _written(self, entries: list[LogEntry]) -> Outcomes | None:
        """Write a group, when the disk has room; None if the store is closed before."""
        while True:
            try:
                outcomes = self._log.write(entries)
            except DiskFullError as error:
                if self.watch.full is None:
                    self.on_room(error)
                self.watch.wait_for_room(error)
                if self._next_group() is None:
                    return None
                self._log.check_in_place()
            else:
                if self.watch.full is not None:
                    self.on_room(None)
                return outcomes

    def _next_group(self) -> list[LogEntry] | None:
        """Return entries to write, an empty list after an idle time, or None to end."""
        try:
            return self._groups.get(timeout=CHECK_INTERVAL_S)
        except Empty:
            return []


MAX_PENDING_BYTES: Final = 32 << 20
"""Records waiting for the disk; with more the store receives none."""

SERVE_COUNT: Final = 8_192
SERVE_BYTES: Final = 4 << 20
"""Records read and sent per round: between rounds the store stores records and serves others."""

SERVE_REQUESTS: Final = 256
"""Small requests, or records in them, that are answered per round."""

_SMALL: Final = (Fetch, GetHeads, ConsumerHello, HeadsQuery, TimesQuery)
"""Requests with answers that are usually small, so several are answered in a round."""

_log = logging.getLogger("dafka.store")


class StoreLoop:
    """A store's actions in each round of its loop."""

    def __init__(self, role: StoreRole, log: Log, log_writer: LogWriter, mesh: Mesh) -> None:
        self._role = role
        self._log = log
        self._log_writer = log_writer
        self._mesh = mesh
        self._refused_count = 0
        self.too_large_count = 0
        """Records rejected because they exceed the store's limit."""
        self.damaged_count = 0
        """Unanswered requests for damaged parts of the log."""

    def on_round(self, now: float) -> bool:
        """Write entries and serve requests; return True if more requests wait."""
        if self._role.pending_bytes and not self._log_writer.busy:
            self._log_writer.write(self._role.take_pending())
        is_full = self._log_writer.watch.full is not None  # then records are refused
        self._mesh.set_receiving(is_full or self._role.pending_bytes < MAX_PENDING_BYTES)
        too_large, self._role.too_large = self._role.too_large, []
        self.too_large_count += len(too_large)
        for error in too_large:
            text = "%s. Until then nothing after it in this partition is stored here"
            _log.error(text, error, extra={"event": "record_too_large"})
        self._role.admitted.limits.report(now)
        self._serve()
        return bool(self._role.requests)

    def _serve(self) -> None:
        requests, sent = self._role.requests, 0
        for _ in range(SERVE_REQUESTS):
            request = requests.take()
            if request is None:
                break
            try:
                answer = self._answer(request)
            except StoreError as error:
                # Damage concerns one partition; the others continue. No wrong record is ever sent.
                self._report_damage(error)
                continue
            self._mesh.send(answer)
            sent += sum(map(_size, answer))
            if not isinstance(request, _SMALL) or sent >= SERVE_REQUESTS:
                break
        if requests.refused_count > 2 * self._refused_count:
            self._refused_count = requests.refused_count
            text = "%d requests refused so far: %d wait; their requestors will retry"
            extra = {"event": "requests_refused"}
            _log.warning(text, self._refused_count, len(requests), extra=extra)

    def _report_damage(self, error: StoreError) -> None:
        self.damaged_count += 1
        _log.error("%s", error, extra={"event": "log_damaged"})

    def _answer(self, request: store_requests.Work) -> list[Outgoing]:
        match request:
            case Fetch():
                return self._fetched(request)
            case store_requests.FetchMany():
                return self._fetched_batches(request)
            case GetHeads() | ConsumerHello() | store_requests.HeadsAfter():
                return self._heads(store_requests.HeadsAfter.of(request))
            case HeadsQuery():
                each = [self._log.partitions(topic) for topic in request.topics or (None,)]
                infos = list(chain.from_iterable(each))
                return store_requests.replies(request, self._role.address, infos)
            case TimesQuery():
                times = self._log.times(request.tp, request.sequence, request.end)
                return store_requests.replies(request, self._role.address, times)
            case store_requests.AnnounceHeads():
                return store_requests.heads(self._log.partitions())
            case PublishCommitted():
                return self._published(request)

    def _heads(self, heads: store_requests.HeadsAfter) -> list[Outgoing]:
        """Return the heads of one message; all at once would delay other requests, and beacons."""
        if not heads.topics:
            return []
        infos = self._log.partitions_after(heads.topics[0] or None, heads.after, heads.most)
        rest = heads.rest(infos)
        if rest is not None:
            self._role.requests.put_back(rest)
        if heads.requestor in self._role.packing:
            query = HeadsQuery(heads.requestor, HEADS, ())
            return store_requests.replies(query, self._role.address, infos)
        return store_requests.heads(infos, heads.requestor)

    def _fetched(self, fetch: Fetch) -> list[Outgoing]:
        """Return the first records of a FETCH; the rest is queued again."""
        batches = self._read(fetch.tp, fetch.sequence, fetch.end)
        if not batches:
            return []
        end = batches[-1].end
        # Read after the records: if the transaction is not the last any more, they are sent as
        # older ones are, without a transaction.
        state = self._log.transaction_state(fetch.tp)
        last = state.transaction
        records = _outgoing(batches, (last,) if last else (), fetch.requestor)
        if end < fetch.end:
            self._role.requests.put_back(Fetch.of(fetch.requestor, fetch.tp, end, fetch.end))
            return records
        return [*records, *store_requests.next_heads(fetch, state.end)]

    def _fetched_batches(self, fetch: store_requests.FetchMany) -> list[Outgoing]:
        """Return the first records of some partitions; the rest is queued again."""
        wanted = fetch.take(SERVE_REQUESTS)
        found = self._log.read_each(wanted, max_records=SERVE_COUNT, max_bytes=SERVE_BYTES)
        fetch.add(wanted[len(found) :])
        batches = []
        for each, batch in zip(wanted, found, strict=False):
            if isinstance(batch, StoreError):
                self._report_damage(batch)
            elif batch is not None:
                batches.append(batch)
                if batch.end < each.end:
                    fetch.add([each._replace(earliest=batch.end)])
        if fetch.wanted:
            self._role.requests.put_back(fetch)
        return store_requests.fetched_batches(fetch.requestor, batches)

    def _published(self, publish: PublishCommitted) -> list[Outgoing]:
        records: list[Outgoing] = []
        # Without a subscriber no record is read: a later one receives the head, and fetches.
        if self._mesh.has_subscriber(publish.tp.topic):
            batches = self._read(publish.tp, publish.start, publish.end)
            records = _outgoing(batches, publish.transactions)
            if batches and batches[-1].end < publish.end:
                self._role.requests.put_back(publish.rest(batches[-1].end))
                return records
        return [*records, *self._role.on_published(publish)]

    def _read(self, tp: TopicPartition, start: int, end: int) -> list[RecordBatch]:
        """Return the first records of a range, within one round's limit; empty if not held."""
        batches = self._log.read(tp, start, end, max_records=SERVE_COUNT, max_bytes=SERVE_BYTES)
        # Records behind a gap are of no use to the requestor.
        return batches if batches and batches[0].offset == start else []


def _size(answer: Outgoing) -> int:
    if isinstance(answer, OutgoingBatch):
        return answer.batch.count
    return len(answer.entries) if isinstance(answer, HeadsReply | TimesReply) else 1


def _outgoing(
    batches: Iterable[RecordBatch], transactions: tuple[Transaction, ...], requestor: str = ""
) -> list[Outgoing]:
    """Return the records as messages, each with its transaction among ``transactions``, if any."""
    return [
        OutgoingBatch(part, requestor)
        for batch in batches
        for part in split_by_transaction(batch, transactions)
    ]
