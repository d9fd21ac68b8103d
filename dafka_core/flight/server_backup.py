"""The service's side of backups and checks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
from pyarrow import flight

from dafka_core.config.version import this_version
from dafka_core.flight import limits
from dafka_core.flight.backup_requests import (
    SCHEMA,
    BackupRequest,
    CheckRequest,
    FoundLinks,
    LinksRequest,
    LogChecked,
    batches,
)
from dafka_core.flight.flight_errors import refusing
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.storage.backup import Known, entries
from dafka_core.storage.log_check import Checked, check_partition, check_rest, check_saved, links_of
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import Closing


def back_up(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """The entries of the log at one moment, which lasts as long as the stream."""
    request = context.parse(BackupRequest, ticket, caller)
    stream = context.stream(context.backups, caller, "backup")
    return flight.GeneratorStream(SCHEMA, _batches(context, request, stream))


def check_log(
    context: ServerContext, request: CheckRequest, caller: Caller
) -> Iterator[LogChecked]:
    """What of some partitions is damaged, or of what lies beside records."""
    look = partial(_look, context)
    done = Checked()
    with context.backups.take(caller.is_gone):
        parts = [check_partition(look, tp) for tp in request.partitions]
        if request.saved:
            parts = [(check_saved(look, each) for each in request.saved)]
        for part in parts or [check_rest(look)]:
            for each in part:
                if caller.is_gone():
                    return
                done = done.plus(each)
    yield LogChecked.of(done)


def links(context: ServerContext, request: LinksRequest, caller: Caller) -> Iterator[FoundLinks]:
    """The links of some partitions."""
    look = partial(_look, context)
    for tp in request.partitions:
        found = links_of(look, tp, newest=request.newest)
        for part in limits.parts(found, limits.HEADS_PER_RESULT):
            if caller.is_gone():
                return
            yield FoundLinks(part)
    yield FoundLinks(())  # the end, also where there are none


@contextmanager
def _look(context: ServerContext) -> Iterator[Tables]:
    context.check_open()
    with context.log.snapshot() as snapshot:
        yield snapshot.tables


def _batches(
    context: ServerContext, request: BackupRequest, stream: WatchedStream
) -> Iterator[pa.RecordBatch]:
    reading = translated(context.log.directory)
    with stream, refusing(), reading, _Moment(context.log.snapshot(), request) as moment:
        stream.hold(moment)
        stream.idle_s = limits.BACKUP_IDLE_S
        while (batch := moment.batch()) is not None:
            context.check_open()
            stream.wait()
            yield batch
            stream.go_on()


class _Moment(Closing):
    """The log at one moment, which the watch's thread ends where a client takes nothing.

    The handler's thread waits inside gRPC then, maybe for ever, and LMDB would use no page again.
    """

    def __init__(self, snapshot: Snapshot, request: BackupRequest) -> None:
        known = {each[0]: Known(*each) for each in request.known}
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = snapshot
        self._batches = batches(entries(snapshot.tables, known, {"dafka": this_version()}))

    def batch(self) -> pa.RecordBatch | None:
        """The next entries; None at the end, also after ``close``."""
        with self._lock:
            return None if self._snapshot is None else next(self._batches, None)

    def close(self) -> None:
        """Ends it; a second call does nothing."""
        with self._lock:
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                snapshot.close()
