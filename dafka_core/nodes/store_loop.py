"""The loop of a store between role and log, and the thread that writes the log.

The thread also watches the log's disk (``DiskWatch``): it logs a slow, full or nearly full disk
while the store runs.  Other disk errors end the store.

``StoreLoop`` owns no socket and no thread, so the simulation runs it over a disk of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from dafka_core.errors import DafkaError, DiskFullError, StoreError
from dafka_core.model.histograms import Durations
from dafka_core.model.log_entries import LogEntry, Promise, SetAside, Stage
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, Transaction
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import NodeThread
from dafka_core.protocol import store_requests
from dafka_core.protocol.messages import HEADS, HeadsQuery, HeadsReply, TimesQuery, TimesReply
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_requests import HeadsRequest, RecordsRequest, Request
from dafka_core.protocol.store_role import StoreRole
from dafka_core.security.throttles import LogThrottle
from dafka_core.storage import Log
from dafka_core.system.closing import ProcessBound

_log = logging.getLogger("dafka.store")

# -- the disk --------------------------------------------------------------------------------------

SLOW_S: Final = 1.0
"""A group that takes longer is slow: a healthy disk takes some milliseconds, and every producer
waits for it."""

CHECK_SPACE_S: Final = 10.0  # interval of checks of the free space

LOW_SHARE: Final = 0.05
LOW_BYTES: Final = 1 << 30
"""A disk is nearly full if less than this share, and less than this size, is free.  Both: a share
of a large disk is a lot, and a small disk never has this size."""

MAX_COUNTED_TOPICS: Final = 1_000  # topics counted separately; others are counted under ``OTHER``

OTHER: Final = "other"


class Disk(NamedTuple):
    """The file system of a directory."""

    size_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, directory: Path) -> Disk:
        """Return its present state; OSError if the directory cannot be reached."""
        found = os.statvfs(directory)
        return cls(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    @property
    def is_low(self) -> bool:
        """Return True if it is nearly full."""
        return self.free_bytes < min(LOW_BYTES, LOW_SHARE * self.size_bytes)


class DiskWatch:
    """Counters of the log's writes: the log writer's thread updates them, and others read them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.appends = Durations()  # of groups from the log writer to the disk, synced
        self.records = self.bytes = 0  # appended or staged, and the bytes of their contents
        self.topics: dict[str, list[int]] = {}  # both, by topic
        self.fences = 0  # how often records were set aside, since another history had won
        self.promises = 0  # to acknowledge nothing more to earlier producers
        self.refused = Counter[str]()  # refused entries, by the name of the error
        self.slow_count = 0  # groups that took longer than ``SLOW_S``
        self.slow_at: float | None = None  # the end of the last of them (monotonic)
        self.begun_at: float | None = None  # the start of the group that is being written
        self.failure: BaseException | None = None  # the error that ended the writing
        self.full: DiskFullError | None = None  # the error of the group that waits for room
        self._throttle = LogThrottle()
        self._slow_logged_count = 0
        self._checked_at = -CHECK_SPACE_S

    def begin(self) -> None:
        """Note that a group is being written."""
        self.begun_at = time.monotonic()

    def end(self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None]) -> None:
        """Note that it is on disk."""
        now = time.monotonic()
        took_s, self.begun_at = now - (self.begun_at or now), None
        if self.full is not None:
            self.full, took_s = None, 0.0  # it has waited for room
            text = "the disk below %s has room again: the store accepts records"
            _log.warning(text, self.directory, extra={"event": "disk_has_room"})
        self.appends.add(took_s)
        for entry, error in zip(entries, outcomes, strict=True):
            if error is not None:
                self.refused[type(error).__name__] += 1
            elif isinstance(entry, RecordBatch):
                self._count(entry)
            elif isinstance(entry, Stage):
                self._count(entry.batch)
            elif isinstance(entry, SetAside):
                self.fences += 1
            elif isinstance(entry, Promise):
                self.promises += 1
        if took_s > SLOW_S:
            self.slow_count, self.slow_at = self.slow_count + 1, now
            if self._throttle.is_new("slow"):
                text = (
                    "the disk below %(directory)s is slow: it took %(took_s).1f s to write and "
                    "sync what came in meanwhile, and was slower than %(limit_s)g s %(count)d "
                    "times since the last warning. Producers wait for it"
                )
                facts = {"directory": str(self.directory), "took_s": took_s, "limit_s": SLOW_S}
                facts["count"] = self.slow_count - self._slow_logged_count
                self._slow_logged_count = self.slow_count
                _log.warning(text, facts, extra={"event": "disk_slow"})
        self.check_space(now)

    def _count(self, batch: RecordBatch) -> None:
        count, size_bytes = batch.count, batch.values.size_bytes
        self.records += count
        self.bytes += size_bytes
        is_counted = batch.tp.topic in self.topics or len(self.topics) < MAX_COUNTED_TOPICS
        counts = self.topics.setdefault(batch.tp.topic if is_counted else OTHER, [0, 0])
        counts[0] += count
        counts[1] += size_bytes

    def wait_for_room(self, error: DiskFullError) -> None:
        """Note that the group waits until the disk has room."""
        self.full = error
        if self._throttle.is_new("full"):
            text = "%s. Until then the store accepts no records, and serves those that it has"
            _log.error(text, error, extra={"event": "disk_full"})

    def fail(self, error: BaseException) -> None:
        """Note that writing has failed for good."""
        self.begun_at, self.failure = None, error

    def check_space(self, now: float) -> None:
        """Log a nearly full disk, if a check is due."""
        if now - self._checked_at < CHECK_SPACE_S:
            return
        self._checked_at = now
        try:
            disk = Disk.of(self.directory)
        except OSError:
            return  # the log reports that itself
        if disk.is_low and self._throttle.is_new("low"):
            text = (
                "the disk below %(directory)s is nearly full: %(free_bytes)d of %(size_bytes)d "
                "bytes are free. When it is full, the store accepts no records: free some space, "
                "or set a retention"
            )
            facts = {"directory": str(self.directory), **disk._asdict()}
            _log.warning(text, facts, extra={"event": "disk_nearly_full"})


# -- the loop and the log writer -------------------------------------------------------------------

CHECK_LOG_S: Final = 1.0
"""Interval at which an idle writer checks that the log exists and can be read.  A failure must be
noticed soon: readers keep sending requests."""

MAX_PENDING_BYTES: Final = 32 << 20
"""Records waiting for the disk; with more the store receives none."""

SERVE_COUNT: Final = 8_192
SERVE_BYTES: Final = 4 << 20
"""Records read and sent per round: between rounds the store stores records and serves others."""

SERVE_REQUESTS: Final = 256
"""Small requests, or records and heads in their answers, that are answered per round."""

Outcomes = list[DafkaError | None]  # the log's outcome of each entry: None for success


class LogWriter(ProcessBound):
    """A thread in which the log writes one group of entries at a time.

    Args:
        log: no other thread writes to it.
        done: called in the thread after each group: with the entries and their outcomes when they
            are on disk, synced; with the error if none of them is.  After an error no group is
            written any more, but a group waits for room while the disk is full.  Also called,
            without entries, if the log's directory is gone or unreadable.
        on_room: called in the thread with an error if the disk becomes full, and with None if it
            has room again.
    """

    def __init__(
        self,
        log: Log,
        done: Callable[[list[LogEntry], Outcomes | BaseException], None],
        on_room: Callable[[DiskFullError | None], None] = lambda _: None,
    ) -> None:
        self.busy = False  # a group is being written
        self.watch = DiskWatch(log.directory)
        self._log = log
        self._done = done
        self._groups: SimpleQueue[list[LogEntry] | None] = SimpleQueue()
        self._on_room = on_room
        self._thread = NodeThread("dafka-log-writer", self._run)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Return True while a group waits for room on the disk."""
        return self.watch.full is not None

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
        entries: list[LogEntry] | None = []
        try:
            while (entries := self._next_group()) is not None:
                if not entries:
                    self._log.check_in_place()
                    self.watch.check_space(time.monotonic())
                    continue
                self.watch.begin()
                outcomes = self._written(entries)
                if outcomes is None:
                    return
                self.watch.end(entries, outcomes)
                self.busy = False
                self._done(entries, outcomes)
                del entries, outcomes  # the thread keeps no group while it waits for the next one
        except BaseException as error:  # noqa: BLE001 -- the store fails with it
            self.watch.fail(error)
            self._done(entries or [], error)

    def _written(self, entries: list[LogEntry]) -> Outcomes | None:
        """Write a group, when the disk has room; None if the store is closed before."""
        while True:
            try:
                outcomes = self._log.write(entries)
            except DiskFullError as error:
                if not self.is_full:
                    self._on_room(error)
                self.watch.wait_for_room(error)
                if self._next_group() is None:
                    return None
                self._log.check_in_place()
            else:
                if self.is_full:
                    self._on_room(None)
                return outcomes

    def _next_group(self) -> list[LogEntry] | None:
        """Return entries to write, an empty list after an idle time, or None to end."""
        try:
            return self._groups.get(timeout=CHECK_LOG_S)
        except Empty:
            return []


class StoreLoop:
    """A store's actions in each round of its loop."""

    def __init__(self, role: StoreRole, log: Log, log_writer: LogWriter, mesh: Mesh) -> None:
        self.damaged_count = 0  # unanswered requests for damaged parts of the log
        self._role = role
        self._log = log
        self._log_writer = log_writer
        self._mesh = mesh
        self._refused_count = 0

    def on_round(self, now: float) -> bool:
        """Write entries and serve requests; return True if more requests wait."""
        role = self._role
        if role.pending_bytes and not self._log_writer.busy:
            self._log_writer.write(role.take_pending())
        # While the disk is full, records are refused.
        self._mesh.set_receiving(self._log_writer.is_full or role.pending_bytes < MAX_PENDING_BYTES)
        self._serve()
        return bool(role.requests)

    def _serve(self) -> None:
        requests, sent = self._role.requests, 0
        for _ in range(SERVE_REQUESTS):
            if (request := requests.take()) is None:
                break
            try:
                answer = self._answer(request)
            except StoreError as error:
                if isinstance(request, HeadsRequest | HeadsQuery):
                    raise  # a damaged row: silence would hold up everyone that waits for all stores
                # Damage concerns one partition; the others continue. No wrong record is ever sent.
                self._report_damage(error)
                continue
            self._mesh.send(answer)
            sent += sum(map(_size, answer))
            if sent >= SERVE_REQUESTS or (
                isinstance(request, RecordsRequest) and (request.is_packed or not request.requestor)
            ):
                break
        if requests.refused_count > 2 * self._refused_count:
            self._refused_count = requests.refused_count
            text = "%d requests refused so far: %d wait; their requestors will retry"
            extra = {"event": "requests_refused"}
            _log.warning(text, self._refused_count, len(requests), extra=extra)

    def _report_damage(self, error: StoreError) -> None:
        self.damaged_count += 1
        _log.error("%s", error, extra={"event": "log_damaged"})

    def _answer(self, request: Request) -> list[Outgoing]:
        match request:
            case RecordsRequest(requestor=""):
                return self._published(request)
            case RecordsRequest(is_packed=True):
                return self._fetched_packed(request)
            case RecordsRequest():
                return self._fetched(request)
            case HeadsRequest():
                return self._heads(request)
            case HeadsQuery():
                each = [self._log.partitions(topic) for topic in request.topics or (None,)]
                return store_requests.replies(request, self._role.address, chain(*each))
            case TimesQuery():
                times = self._log.times(request.tp, request.sequence, request.end)
                return store_requests.replies(request, self._role.address, times)

    def _heads(self, request: HeadsRequest) -> list[Outgoing]:
        """Return the heads of one message; all at once would delay other requests, and beacons."""
        infos, rest = request.page(self._log.partitions_after)
        if rest is not None:
            self._role.requests.put_back(rest)
        if request.requestor in self._role.packing:
            query = HeadsQuery(request.requestor, HEADS, ())
            return store_requests.replies(query, self._role.address, infos)
        return store_requests.heads(infos, request.requestor)

    def _fetched(self, fetch: RecordsRequest) -> list[Outgoing]:
        """Return the first records of a FETCH; the rest is queued again."""
        tp = fetch.tp
        batches = self._read(tp, fetch.start, fetch.end)
        if not batches:
            return []
        end = batches[-1].end
        # Read after the records: if the transaction is not the last any more, they are sent as
        # older ones are, without a transaction.
        state = self._log.transaction_state(tp)
        last = (state.transaction,) if state.transaction else ()
        records = _outgoing(batches, last, fetch.requestor)
        if end < fetch.end:
            self._role.requests.put_back(fetch.rest(end))
        elif state.end > fetch.end:
            # C nodes request 100,000 records at most, and the next ones only when they receive a
            # head again (docs/wire.md, "For C nodes").
            info = [PartitionInfo(*tp, 0, state.end)]
            records += store_requests.heads(info, fetch.requestor) + store_requests.heads(info)
        return records

    def _fetched_packed(self, first: RecordsRequest) -> list[Outgoing]:
        """Return the first records of some partitions; the rest is queued again."""
        requests = self._role.requests
        fetches = requests.take_packed(first, SERVE_REQUESTS)
        ranges = [PartitionInfo(*each.tp, each.start, each.end) for each in fetches]
        found = self._log.read_each(ranges, max_records=SERVE_COUNT, max_bytes=SERVE_BYTES)
        for fetch in fetches[len(found) :]:
            requests.put_back(fetch)
        batches = []
        for fetch, batch in zip(fetches, found, strict=False):
            if isinstance(batch, StoreError):
                self._report_damage(batch)
            elif batch is not None:
                batches.append(batch)
                if batch.end < fetch.end:
                    requests.put_back(fetch.rest(batch.end))
        return store_requests.fetched_batches(first.requestor, batches)

    def _published(self, publish: RecordsRequest) -> list[Outgoing]:
        records: list[Outgoing] = []
        # Without a subscriber no record is read: a later one receives the head, and fetches.
        if self._mesh.has_subscriber(publish.tp.topic):
            batches = self._read(publish.tp, publish.start, publish.end)
            records = _outgoing(batches, publish.transactions)
            if batches and batches[-1].end < publish.end:
                self._role.requests.put_back(publish.rest(batches[-1].end))
                return records
        return records + self._role.hosted.published(publish.tp, publish.end)

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
    batches: list[RecordBatch], transactions: tuple[Transaction, ...], requestor: str = ""
) -> list[Outgoing]:
    """Return the records as messages, each with its transaction among ``transactions``, if any."""
    parts = (store_requests.split_by_transaction(batch, transactions) for batch in batches)
    return [OutgoingBatch(part, requestor) for part in chain.from_iterable(parts)]
