"""The server side of a get: ranges of the log, with or without a condition, backups and checks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import CHANGED, DataLossError, HistoryChangedError
from dafka_core.flight import limits
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
from dafka_core.flight.flight_errors import BEHIND, UnavailableError, refusing
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.server_context import ServerContext, WatchedStream
from dafka_core.flight.server_keys import Caller, administers, reads
from dafka_core.model.envelope import AUTO
from dafka_core.model.epochs import EpochId, History, known_until
from dafka_core.model.records import (
    MatchedRecords,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    concat,
    is_large,
)
from dafka_core.model.where import Where, matched
from dafka_core.storage.backup import Known, entries
from dafka_core.storage.log_check import Checked, check_partition, check_rest, check_saved, links_of
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import Closing
from dafka_core.system.distribution import this_version

Batches = Iterator[tuple[pa.RecordBatch, bytes]]  # batches with their metadata


def check_log(context: ServerContext, request: CheckRequest, caller: Caller) -> Iterator[Checked]:
    """Yield the damage of some partitions, or of data beside records."""
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


def links(context: ServerContext, request: LinksRequest, caller: Caller) -> Iterator[FoundLinks]:
    """Yield the links of some partitions."""
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


def check_history(history: History, wanted: RecordRange) -> None:
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
    request = context.parse(GetRequest, reads, ticket, caller)
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


MAX_SCANNED_BYTES: Final = 64 << 20
"""Bytes scanned for one batch: a client receives something every tenth of a second or so, also if
nothing matches."""

PIECE_BYTES: Final = 8 << 20
"""Bytes scanned between two checks that the client still waits: some milliseconds' work, and some
seconds' for the slowest conditions.  Pieces of 1 MiB would double the time of a scan."""

MAX_SCANNED_BLOCKS: Final = 64  # small blocks cost more than their size


class _Get:
    """One get, and its progress: the number of the range to continue, and the offset in it."""

    def __init__(self, context: ServerContext, request: GetRequest, caller: Caller) -> None:
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
