"""The server side of gets and actions.

A get returns ranges of the log, with or without a condition, or a backup.  Actions have JSON
requests and answers: checks, the watch for changes, and all that writers ask for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import CHANGED, DataLossError, HistoryChangedError, InvalidRequestError
from dafka_core.flight import limits
from dafka_core.flight import requests as r
from dafka_core.flight.backup_requests import (
    BACKUP_TICKET,
    SCHEMA,
    BackupRequest,
    CheckRequest,
    FoundLinks,
    LinksRequest,
    batches,
)
from dafka_core.flight.columns import Part, batch_of, packed_parts, schema_of
from dafka_core.flight.flight_errors import BEHIND, BUSY, UnavailableError, refusing
from dafka_core.flight.limits import MAX_LEASED_BLOCKS, MAX_LEASED_BYTES
from dafka_core.flight.server_context import POLL_S, ServerContext, WatchedStream
from dafka_core.flight.server_keys import (
    Caller,
    Need,
    administers,
    anything,
    discards,
    knows,
    reads,
    reads_or_writes,
    sets_rules,
    writes,
)
from dafka_core.model.envelope import AUTO
from dafka_core.model.epochs import EpochId, History, known_until
from dafka_core.model.json_message import JsonMessage, short
from dafka_core.model.log_entries import Commit, Discard, Forget
from dafka_core.model.name_limits import nearest
from dafka_core.model.records import (
    MatchedRecords,
    PartitionInfo,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    concat,
    is_large,
)
from dafka_core.model.values import RowDigest
from dafka_core.model.where import Where, matched
from dafka_core.storage.backup import Known, entries
from dafka_core.storage.environment import Topics
from dafka_core.storage.leases import MAX_LEASES
from dafka_core.storage.log import TRIM_PARTITIONS
from dafka_core.storage.log_check import Checked, check_partition, check_rest, check_saved, links_of
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import Closing
from dafka_core.system.distribution import this_version

T = TypeVar("T")

Batches = Iterator[tuple[pa.RecordBatch, bytes]]  # batches with their metadata


# -- gets ------------------------------------------------------------------------------------------

MAX_SCANNED_BYTES: Final = 64 << 20
"""Bytes scanned for one batch: a client receives something every tenth of a second or so, also if
nothing matches."""

PIECE_BYTES: Final = 8 << 20
"""Bytes scanned between two checks that the client still waits: some milliseconds' work, and some
seconds' for the slowest conditions.  Pieces of 1 MiB would double the time of a scan."""

MAX_SCANNED_BLOCKS: Final = 64  # small blocks cost more than their size


def _backup_batches(
    context: ServerContext, request: BackupRequest, stream: WatchedStream
) -> Iterator[pa.RecordBatch]:
    reading = translated(context.log.directory)
    with stream, refusing(), reading, _Moment(context, request) as moment:
        stream.hold(moment)
        stream.idle_s = limits.BACKUP_IDLE_S
        while (batch := moment.batch()) is not None:
            context.check_open()
            stream.wait()
            yield batch
            stream.go_on()


class _Moment(Closing):
    """A consistent view of the log, which the watch's thread ends if a client is stalled.

    The handler's thread waits inside gRPC then, perhaps for ever, and LMDB would reuse no page.
    """

    def __init__(self, context: ServerContext, request: BackupRequest) -> None:
        known = {each[0]: Known(*each) for each in request.known}
        self._lock, self._reading = threading.Lock(), ExitStack()
        snapshot = self._reading.enter_context(context.log.snapshot())
        found = batches(entries(snapshot, known, {"dafka": this_version()}))
        self._batches: Iterator[pa.RecordBatch] | None = found

    def batch(self) -> pa.RecordBatch | None:
        """Return the next entries; None at the end, also after ``close``."""
        with self._lock:
            return None if self._batches is None else next(self._batches, None)

    def close(self) -> None:
        with self._lock:
            self._batches = None
            self._reading.close()


def check_held(held: PartitionInfo | None, tp: TopicPartition, start: int, end: int) -> None:
    """Raise DataLossError unless the records from ``start`` to ``end`` are held.

    Its ``available`` is the first offset held if the range begins before it, else None; its
    ``wanted`` is the first offset of the range that is not held.
    """
    if held is None:
        held = PartitionInfo(*tp, 0, 0)
    if start < held.earliest and start < end:
        why = "the store has no records before it"
        raise DataLossError(*tp, start, held.earliest, why)
    if end > held.end:
        why = f"the store has the records from {held.earliest} up to {held.end} (exclusive)"
        raise DataLossError(*tp, max(start, held.end), None, why)


def check_history(history: History, wanted: r.RecordRange) -> None:
    """Raise an error unless a log's records are of the history known to the caller."""
    for life, end in ((wanted.after, wanted.start), (wanted.life, wanted.end)):
        if life is None:
            continue
        known = known_until(history, EpochId(*life))
        if known is None:
            why = f"the store has no records of life {life[0]} of the partition's producer yet"
            raise UnavailableError(BEHIND, f"{why}; use another store, or retry later")
        if known < end:
            raise HistoryChangedError(*wanted.tp, known, None, CHANGED, end)


def get(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """Stream the batches for a ticket."""
    if BACKUP_TICKET.search(ticket):
        backup = context.parse(BackupRequest, administers, ticket, caller)
        stream = context.stream(context.backups, caller, "backup")
        return flight.GeneratorStream(SCHEMA, _backup_batches(context, backup, stream))
    request = context.parse(r.GetRequest, reads, ticket, caller)
    ranges = request.ranges
    what = str(ranges[0].tp) if len(ranges) == 1 else f"{len(ranges)} ranges"
    stream = context.stream(context.gets, caller, f"get of {what}")
    schema = schema_of(request.columns)
    found = _Get(context, request, caller).batches(schema)
    return flight.GeneratorStream(schema, _streamed(context, stream, found))


def _streamed(context: ServerContext, stream: WatchedStream, batches: Batches) -> Batches:
    """Yield batches with their metadata.

    Between two of them the store keeps only a copy of the block they are cut from: a client may
    read slowly.  A stalled one is given up.
    """
    with stream:
        while True:
            with refusing():
                context.check_open()
                found = next(batches, None)
            if found is None:
                return
            size_bytes = found[0].nbytes
            context.gets.add_sent(size_bytes)
            stream.wait(size_bytes)
            yield found
            with refusing():
                stream.go_on()


class _Get:
    """One get, and its progress: the number of the range to continue, and the offset in it."""

    def __init__(self, context: ServerContext, request: r.GetRequest, caller: Caller) -> None:
        self._context = context
        self._request = request
        self._caller = caller
        self._where = None if request.where is None else Where.parse(request.where)
        self._number, self._at = 0, 0
        self._scanned_bytes = self._scanned_blocks = 0

    def batches(self, schema: pa.Schema) -> Batches:
        """Yield the batches; each round holds the log only while it reads."""
        request = self._request
        while self._number < len(request.ranges):
            self._context.check_open()
            parts = self._parts()
            groups: Iterable[list[Part]] = [parts] if parts else ()
            if len(parts) == 1 and isinstance(whole := parts[0].records, RecordBatch):
                pieces = whole.split(request.max_records, request.max_bytes)  # it may be large
                groups = ([Part(parts[0].number, piece)] for piece in pieces)
            for group in groups:
                batch = batch_of([each.records for each in group], schema)
                yield batch, packed_parts(group, times=request.times)

    def _parts(self) -> list[Part]:
        """Return the next records of ranges: small blocks up to the limits, or a large one."""
        request = self._request
        held: list[Part] = []
        records = size_bytes = self._scanned_bytes = self._scanned_blocks = 0
        with self._context.log.snapshot() as snapshot:
            for part in self._pieces(snapshot):
                found = part.records
                records, size_bytes = records + found.count, size_bytes + found.values.size_bytes
                if held and (records > request.max_records or size_bytes > request.max_bytes):
                    self._number, self._at = part.number, found.offset
                    break
                held.append(part)
                is_small = self._scanned_bytes < MAX_SCANNED_BYTES and not is_large(found)
                if not is_small or self._scanned_blocks >= MAX_SCANNED_BLOCKS:
                    self._number, self._at = part.number, found.end
                    break
            else:
                self._number = len(request.ranges)
        return [
            Part(number, concat([part.records for part in parts]))
            for number, parts in groupby(held, attrgetter("number"))
        ]

    def _pieces(self, snapshot: Snapshot) -> Iterator[Part]:
        for number in range(self._number, len(self._request.ranges)):
            wanted = self._request.ranges[number]
            at = self._at if self._at and number == self._number else wanted.start
            if wanted.start < at == wanted.end:
                continue
            try:
                held, history = snapshot.held(wanted.tp)
                check_held(held, wanted.tp, at, wanted.end)
                check_history(history, wanted)
            except (DataLossError, UnavailableError):
                if not self._request.partial:
                    raise
                continue
            for block in snapshot.read(wanted.tp, at, wanted.end):
                for piece in self._matched(block) if self._where else (block,):
                    yield Part(number, piece)

    def _matched(self, block: RecordBatch) -> Iterator[MatchedRecords]:
        request, where = self._request, self._where
        assert where is not None
        self._scanned_blocks += 1
        for piece in block.split(request.max_records, min(request.max_bytes, PIECE_BYTES)):
            self._context.check_wanted(self._caller)
            self._scanned_bytes += piece.values.size_bytes
            yield matched(piece, where, opens=request.envelope == AUTO)


# -- actions ---------------------------------------------------------------------------------------

TURN_S: Final = 0.1
"""Wait of a watch beyond the limit.  A refused client asks again and again, as often as it likes,
so it is refused soon."""


def watch(
    context: ServerContext, request: r.WatchRequest, caller: Caller
) -> Iterator[r.HeadsSince]:
    """Yield the changes since the request's cursor, at the latest after its timeout."""
    topics = None if request.topics is None else frozenset(request.topics)
    session = context.location.session
    known = _number(request.cursor, session)
    if known is not None and request.timeout_s:
        deadline = time.monotonic() + request.timeout_s
        with (
            context.watches.take(caller.is_gone, TURN_S),
            context.log.changes.waking(threading.Event(), known, topics) as woken,
        ):
            while not woken.wait(min(max(deadline - time.monotonic(), 0), POLL_S)):
                context.check_open()
                if caller.is_gone() or time.monotonic() >= deadline:
                    break
    # The cursor first: changes in between are reported twice instead of never.
    cursor = f"{session}:{context.log.changes.number}"
    found = None if known is None else _changed(context, known, topics)
    complete = found is None
    found = context.held(request.topics, caller) if found is None else caller.known(found)
    for part in _parts(found):
        yield r.HeadsSince(cursor, complete, part)


def _number(cursor: str, session: str) -> int | None:
    """Return the change of a cursor; None if it is invalid or of an earlier start of the store."""
    begin, _, number = cursor.partition(":")
    return int(number) if begin == session and number.isascii() and number.isdigit() else None


def _changed(context: ServerContext, known: int, topics: Topics) -> list[PartitionInfo] | None:
    """Return the changed partitions' offsets; None if the changes are not known completely."""
    if context.log.changes.since(known, topics) == []:
        return []  # without reading the tables
    with context.log.snapshot() as snapshot:
        # Not before: all changes made together with those in the snapshot must be included.
        changed = context.log.changes.since(known, topics)
        if changed is None:
            return None
        found = [snapshot.info(tp) for tp in changed]
    held = [each for each in found if each is not None]
    return held if len(held) == len(found) else None


class Action(NamedTuple):
    """The class of an action's request, which has the action's name, its permission and handler."""

    request: type[r.ActionRequest[Any]]
    need: Need
    answers: Callable[[ServerContext, Any, Caller], Iterable[JsonMessage]]
    changes: bool = False  # the store: it waits for its turn among commits


def descriptions() -> list[tuple[str, str]]:
    """Return the name and description of each action, for clients."""
    page = "See docs/flight.md for its body and result."
    docs = ((name, each.request.__doc__ or "") for name, each in ACTIONS.items())
    return [(name, f"{doc.partition(chr(10))[0]} {page}") for name, doc in docs]


def act(context: ServerContext, name: str, body: bytes, caller: Caller) -> Iterator[bytes]:
    """Yield the results of an action; raise InvalidRequestError if it is unknown or invalid."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequestError("action", short(name), nearest(name, ACTIONS))
    request = context.parse(action.request, action.need, body, caller)
    with context.commits.take(caller.is_gone) if action.changes else nullcontext():
        for answer in action.answers(context, request, caller):
            yield answer.packed()


def _parts(found: Sequence[T]) -> Iterable[tuple[T, ...]]:
    """Split the entries of an answer into several results; at least one."""
    return limits.parts(found, limits.HEADS_PER_RESULT) if found else ((),)


def _heads(context: ServerContext, request: r.HeadsRequest, caller: Caller) -> Iterator[r.Heads]:
    return map(r.Heads, _parts(context.held(request.topics, caller)))


def _staged(context: ServerContext, request: r.StagedRequest, caller: Caller) -> Iterator[r.Staged]:
    return map(r.Staged, _parts(caller.known(context.log.staged())))


def _offsets(
    context: ServerContext, request: r.OffsetsRequest, caller: Caller
) -> Iterator[r.Offsets]:
    found: list[int | None] = []
    for topic, partition, time_us in request.times:
        context.check_wanted(caller)
        tp = TopicPartition(topic, partition)
        found.append(context.log.offset_for_time(tp, time_us, after_all=request.after_all))
    refusal = context.backend.refusal.why if context.backend.refusal else ""
    doubt, damaged = context.log.clock.doubt(), len(context.log.healer.damaged)
    yield r.Offsets(tuple(found), time.time_ns() // 1_000, doubt, refusal, damaged)


def _sizes(
    context: ServerContext, request: r.SizesRequest, caller: Caller
) -> Iterator[r.RecordSizes]:
    found: list[tuple[int, ...] | None] = []
    with context.log.snapshot() as snapshot:
        for each in request.ranges:
            context.check_wanted(caller)
            sizes = snapshot.record_sizes(each.tp, each.start, each.end)
            found.append(None if sizes is None else tuple(sizes))
    yield r.RecordSizes(tuple(found))


def _wait(context: ServerContext, request: r.WaitRequest, caller: Caller) -> Iterator[r.DurableEnd]:
    transaction = None if request.transaction is None else Transaction(*request.transaction)
    deadline = time.monotonic() + request.timeout_s
    with context.waits.take(caller.is_gone, request.timeout_s):
        while True:
            context.check_open()
            step_s = min(max(deadline - time.monotonic(), 0), POLL_S)
            end = context.backend.wait(request.tp, request.end, step_s, transaction)
            if end >= request.end or time.monotonic() >= deadline or caller.is_gone():
                break
    yield r.DurableEnd(end)


def _transaction_states(
    context: ServerContext, request: r.TransactionsRequest, caller: Caller
) -> Iterator[r.TransactionStates]:
    yield r.TransactionStates(tuple(map(context.log.transaction_state, request.partitions)))


def _commit(context: ServerContext, request: r.CommitRequest, caller: Caller) -> Iterator[r.Done]:
    staged = (StagedTransaction(*row) for row in request.transactions)
    yield _done(context, context.backend.put(Commit(tuple(staged))))


def _digests(
    context: ServerContext, request: r.DigestsRequest, caller: Caller
) -> Iterator[r.Digests]:
    found: list[str] = []
    with context.log.snapshot() as snapshot:
        for topic, partition, attempt, start, end in request.ranges:
            tp, digest = TopicPartition(topic, partition), RowDigest()
            check_held(snapshot.held(tp, attempt)[0], tp, start, end)
            for batch in snapshot.read(tp, start, end, attempt):
                context.check_wanted(caller)
                digest.add(batch.values)
            found.append(str(digest))
    yield r.Digests(tuple(found))


def _discard(context: ServerContext, request: r.DiscardRequest, caller: Caller) -> Iterator[r.Done]:
    discards = [
        Discard(TopicPartition(topic, partition), attempt)
        for topic, partition, attempt in request.stages
    ]
    yield _done(context, context.backend.put(*discards)) if discards else r.Done()


def _forget(context: ServerContext, request: r.ForgetRequest, caller: Caller) -> Iterator[r.Done]:
    yield _done(context, context.backend.put(Forget(request.address)))


def _lease(
    context: ServerContext, request: r.LeaseRequest, caller: Caller
) -> Iterator[r.LeaseGranted]:
    log = context.log
    if request.done:
        log.end_lease(request.done)
    if not request.ranges:
        yield r.LeaseGranted()
        return
    ranges = [(each.tp, each.start, each.end) for each in request.ranges]
    found, lease = log.lease(ranges, max_blocks=MAX_LEASED_BLOCKS, max_bytes=MAX_LEASED_BYTES)
    if lease is None:
        why = f"{MAX_LEASES} leases are held, as many as may be; read over Flight, or later"
        raise UnavailableError(BUSY, why)
    try:
        blocks: list[tuple[int, int, int, int]] = []
        for number, (each, placed) in enumerate(zip(request.ranges, found, strict=False)):
            try:
                check_held(placed.held, each.tp, each.start, each.end)
                check_history(placed.history, each)
            except (DataLossError, UnavailableError):
                if not request.partial:
                    raise
            else:
                blocks += [(number, *place) for place in placed.blocks]
        yield r.LeaseGranted(lease.id, lease.slot, len(found), tuple(blocks))
    except BaseException:
        log.end_lease(lease.id)
        raise


def _retention(
    context: ServerContext, request: r.RetentionRequest, caller: Caller
) -> Iterator[r.RetentionRules]:
    control = context.retention
    if control is None:
        raise InvalidRequestError("rules", list(request.rules or ()), "this store keeps all")
    if request.reset or request.rules is not None:
        control.replace(None if request.reset else request.parsed(), request.previous)
    rules = control.rules
    if not caller.owner.knows_all:  # rules name topics
        topics = {info.topic for info in context.held(None, caller)}
        rules = tuple(rule for rule in rules if any(map(rule.fits, topics)))
    yield r.RetentionRules(tuple(map(str, rules)), control.is_set, control.given_up)


def _trim(context: ServerContext, request: r.TrimRequest, caller: Caller) -> Iterator[r.Trimmed]:
    earliest: list[int] = []
    for part in limits.parts(request.trims, TRIM_PARTITIONS):
        context.check_open()
        wanted = [(TopicPartition(topic, partition), at) for topic, partition, at in part]
        earliest += context.log.trim_all(wanted)
    yield r.Trimmed(tuple(earliest))


def _delete(
    context: ServerContext, request: r.DeleteRequest, caller: Caller
) -> Iterator[r.Deleted]:
    if context.delete_topic is None:
        raise InvalidRequestError("topic", request.topic, "this store deletes nothing")
    yield r.Deleted(*context.delete_topic(request.topic))


def _check(context: ServerContext, request: CheckRequest, caller: Caller) -> Iterator[Checked]:
    open_tables = partial(_open_tables, context)
    done = Checked()
    with context.backups.take(caller.is_gone):
        parts = [check_partition(open_tables, tp) for tp in request.partitions]
        if request.saved:
            parts = [(check_saved(open_tables, each) for each in request.saved)]
        for part in parts or [check_rest(open_tables)]:
            for each in part:
                context.check_wanted(caller)
                done = done.plus(each)
    yield done


def _links(context: ServerContext, request: LinksRequest, caller: Caller) -> Iterator[FoundLinks]:
    open_tables = partial(_open_tables, context)
    for tp in request.partitions:
        found = links_of(open_tables, tp, newest=request.newest)
        for part in limits.parts(found, limits.HEADS_PER_RESULT):
            context.check_wanted(caller)
            yield FoundLinks(part)
    yield FoundLinks(())  # the end, also without links


def _open_tables(context: ServerContext) -> AbstractContextManager[Tables]:
    context.check_open()
    return context.log.snapshot()


def _done(context: ServerContext, future: Future[None]) -> r.Done:
    """Wait for the disk, even if the client has gone meanwhile."""
    while not wait([future], POLL_S).done:
        context.check_open()
    future.result()
    return r.Done()


ACTIONS: Final[dict[str, Action]] = {
    action.request.action: action
    for action in (
        Action(r.HeadsRequest, knows, _heads),
        Action(r.OffsetsRequest, knows, _offsets),
        Action(r.SizesRequest, knows, _sizes),
        Action(r.WaitRequest, knows, _wait),
        Action(r.WatchRequest, knows, watch),
        Action(r.TransactionsRequest, knows, _transaction_states),
        Action(r.CommitRequest, writes, _commit, changes=True),
        Action(r.DigestsRequest, reads_or_writes, _digests),
        Action(r.DiscardRequest, discards, _discard, changes=True),
        Action(r.ForgetRequest, administers, _forget, changes=True),
        Action(r.RetentionRequest, sets_rules, _retention, changes=True),
        Action(r.TrimRequest, administers, _trim, changes=True),
        Action(r.DeleteRequest, administers, _delete, changes=True),
        Action(r.StagedRequest, knows, _staged),
        Action(r.LeaseRequest, reads, _lease),
        Action(CheckRequest, administers, _check),
        Action(LinksRequest, administers, _links),
        Action(r.SpaceRequest, anything, lambda context, *_: [context.log.space()]),
        Action(r.PeersRequest, administers, lambda context, *_: [r.Peers(tuple(context.peers()))]),
        Action(r.StoresRequest, anything, lambda context, *_: context.store_locations()),
        Action(r.DescribeRequest, anything, lambda context, *_: [context.location]),
    )
}
"""The actions by their names."""
