"""The service's side of backups and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight

from dafka_core.flight.backup_requests import (
    SCHEMA,
    BackupRequest,
    CheckRequest,
    LogChecked,
    batches,
)
from dafka_core.flight.flight_errors import refusing
from dafka_core.flight.server_context import Caller, ServerContext
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.storage.log_check import Checked, check_partition, check_rest
from dafka_core.storage.log_copy import Known, entries
from dafka_core.storage.tables import Tables
from dafka_core.this_version import this_version


def back_up(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """The entries of the log at one moment, which lasts as long as the stream."""
    request = context.parse(BackupRequest, ticket)
    stream = context.stream(context.backups, caller, "backup")
    return flight.GeneratorStream(SCHEMA, _batches(context, request, stream))


def check_log(
    context: ServerContext, request: CheckRequest, is_gone: Callable[[], bool]
) -> Iterator[LogChecked]:
    """What of some partitions is damaged, or of what lies beside records."""

    @contextmanager
    def look() -> Iterator[Tables]:
        context.check_open()
        with context.log.snapshot() as snapshot:
            yield snapshot.tables

    done = Checked()
    with context.backups.take(is_gone):
        parts = [check_partition(look, tp) for tp in request.partitions] or [check_rest(look)]
        for part in parts:
            for each in part:
                if is_gone():
                    return
                done = done.plus(each)
    yield LogChecked.of(done)


def _batches(
    context: ServerContext, request: BackupRequest, stream: WatchedStream
) -> Iterator[pa.RecordBatch]:
    known = {each[0]: Known(*each) for each in request.known}
    facts = {"dafka": this_version()}
    with stream, refusing(), context.log.snapshot() as snapshot:
        for batch in batches(entries(snapshot.tables, known, facts)):
            context.check_open()
            stream.wait(batch.nbytes)
            yield batch
            stream.go_on()
