"""The queue of appends, staged records and commits of a store, until they are on disk."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from dafka_core.config.node_options import MAX_VALUE_BYTES
from dafka_core.errors import (
    ClosedError,
    DafkaError,
    DiskFullError,
    InvalidRequestError,
    OffsetConflictError,
)
from dafka_core.model.log_entries import (
    Commit,
    Forget,
    LogEntry,
    SetTransaction,
    Stage,
    records_of,
)
from dafka_core.model.records import (
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    kept_times,
)
from dafka_core.model.values import Values
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import weakly
from dafka_core.protocol.store_role import StoreRole
from dafka_core.storage import Log
from dafka_core.system.closing import ProcessBound

MAX_PUT_BYTES: Final = 64 << 20
"""Values of all writers that wait for the disk; further writers block.  Enough for the disk to have
the next group when it has written one."""


Place = Callable[[int, int, Future[int]], RecordBatch | Future[int]]
"""Decides on records when the role accepts them; called in the loop, it must not raise.

Its arguments are the partition's end, how often records were dropped from there, and the future of
the ``Addition``.  It returns the batch, which begins there, or an earlier future to follow.
"""


class Addition(NamedTuple):
    """Records that begin at their partition's end, wherever that is."""

    tp: TopicPartition
    size_bytes: int
    place: Place


class AppendQueue(ProcessBound):
    """A queue of writers' log entries for the store's loop, with futures that complete on disk.

    Thread-safe; ``on_written`` and ``close`` are for the store.  The caller has validated the
    entries: an attempt that is not 32 upper-case hexadecimal digits would be an error of the log,
    which ends the store.  Every future also fails with StoreError, NodeFailedError or ClosedError
    when the store has ended, and with InvalidRequestError for a record above the limit of this
    store, or of another store, which would never receive it.
    """

    def __init__(
        self, mesh: Mesh, role: StoreRole, log: Log, max_record_bytes: int = MAX_VALUE_BYTES
    ) -> None:
        self.size_bytes = 0  # of all writers' values in the queue
        self._max_record_bytes = max_record_bytes
        self._mesh = mesh
        self._role = role
        role.on_dropped = weakly(self._on_dropped, None)
        self._log = log
        self._changed = threading.Condition()
        # Ordered, unlike a set: the simulation must be repeatable.
        self._futures: dict[Future[Any], None] = {}
        # By the identity of the entry that the role has accepted. The loop adds entries, before
        # the log writer has them, and removes them, as the log writer does.
        self._accepted: dict[int, tuple[LogEntry, Future[Any]]] = {}
        self._failure: BaseException | None = None
        # Of new requests, while the disk is full. Earlier ones wait for room, so that none is
        # reported as failed and written later.
        self.refusal: DiskFullError | None = None

    def append(self, tp: TopicPartition, contents: Sequence[bytes], *, timeout_s: float) -> range:
        """Append records after those of other writers; return their offsets when they are on disk.

        Blocks, so the loop must not call it.

        Raises:
            OffsetConflictError: others have kept writing there for ``timeout_s`` seconds.
            InvalidRequestError: a record is larger than a store accepts.
            TimeoutError: the disk takes longer.
            DafkaError: the store has ended.
        """
        deadline = time.monotonic() + timeout_s
        values = Values.of(contents)
        while True:
            start = self._log.end(tp)
            try:
                return range(start, self.put(RecordBatch(tp, start, values)).result(timeout_s))
            except OffsetConflictError:
                if time.monotonic() >= deadline:
                    raise

    def put(self, *entries: LogEntry) -> Future[Any]:
        """Write entries in order; return the future of the last, which completes on disk, synced.

        Blocks while the queue is full.  The future of a batch or a ``Stage`` returns its end.
        Records without times have the time of their arrival.  Repeating a ``Commit`` succeeds.

        Nothing of an entry is written if its future fails:
            OffsetConflictError: it is not at the end of its partition or of its attempt's staged
                records, or not the attempt's staged transaction.
            FencedError: another attempt has taken over.
            TransactionExistsError: the transaction of a ``Stage`` is committed already.
            InvalidRequestError: a store to forget is present.
        """
        return self._submit(*entries)[-1]

    def put_next(self, additions: Sequence[Addition]) -> list[Future[int]]:
        """Append to different partitions, at their ends; the batches share a sync if possible."""
        return self._submit(*additions)

    def name_client(self, tp: TopicPartition, client: str) -> None:
        """Keep the name of the client that writes a partition, unless it is empty."""
        if client:
            self._mesh.call_soon(lambda now: self._role.name_client(tp, client))

    def wait(
        self, tp: TopicPartition, end: int, timeout_s: float, transaction: Transaction | None = None
    ) -> int:
        """Wait until the partition reaches ``end`` on disk, from any source.

        Returns its end, which is less after ``timeout_s`` seconds.  If the partition has the
        records of ``transaction``, its last transaction is then at least as new, even if the
        records came from a C node, which knows no transactions.

        Raises:
            TransactionExistsError: the transaction of this version has other records.
            DafkaError: the store has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._log.end(tp) >= end, timeout_s)
            if self._failure is not None:
                raise self._failure
        found = self._log.end(tp)
        if transaction is not None and found >= transaction.end:
            last = self._log.transaction_state(tp).transaction
            if last != transaction and (last is None or last.version <= transaction.version):
                self.put(SetTransaction(tp, transaction)).result()
        return found

    @property
    def is_free(self) -> bool:
        """Return True if the queue is empty enough for a small append not to block."""
        return self.size_bytes < MAX_PUT_BYTES // 2

    @property
    def limit(self) -> tuple[int, str]:
        """The size in bytes of the largest accepted record, and the store that sets this limit."""
        return self._mesh.limits.with_stores(self._max_record_bytes, "this store")

    # -- from a writer to the role ---------------------------------------------------------------

    def _submit(self, *entries: LogEntry | Addition) -> list[Future[Any]]:
        futures: list[Future[Any]] = [Future() for _ in entries]
        sizes = [*map(_size, entries)]
        size_bytes = sum(sizes)
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._failure
                    or self.refusal
                    or not self.size_bytes
                    or self.size_bytes + size_bytes <= MAX_PUT_BYTES
                )
            )
            failure = self._failure or self.refusal
            if failure is None:
                self._futures.update(dict.fromkeys(futures))
                self.size_bytes += size_bytes
        if failure is None:
            for future, size in zip(futures, sizes, strict=True):
                future.add_done_callback(partial(self._release, size))
            accept = partial(self._accept, list(zip(entries, futures, strict=True)))
            try:
                self._mesh.call_soon(accept)
            except DafkaError as error:
                failure = error
        if failure is not None:
            for future in futures:
                _end(future, failure)
        return futures

    # Holds only the future: with the entry, which has the records, it would form a cycle, and the
    # records would stay in memory until a garbage collection.
    def _release(self, size_bytes: int, done: Future[Any]) -> None:
        with self._changed:
            self._futures.pop(done, None)
            self.size_bytes -= size_bytes
            self._changed.notify_all()

    def _accept(self, entries: list[tuple[LogEntry | Addition, Future[Any]]], now: float) -> None:
        """Pass entries to the role (in the loop)."""
        for entry, future in entries:
            if isinstance(entry, Addition):
                tp, role = entry.tp, self._role
                placed = entry.place(role.next_offset(tp), role.losses(tp), future)
                if isinstance(placed, Future):
                    placed.add_done_callback(partial(_follow, future))
                    continue
                entry = placed  # noqa: PLW2901 -- the rest is the same
            accepted = self._too_large(records_of(entry)) or self._pass(now, entry)
            if isinstance(accepted, DafkaError):
                _end(future, accepted)
            else:
                self._accepted[id(accepted)] = accepted, future

    def _pass(self, now: float, entry: LogEntry) -> LogEntry | DafkaError:
        role = self._role
        match entry:
            case RecordBatch():
                # Now instead of in the log: other stores must receive the same times.
                now_us, latest_us = self._log.now_us(), self._log.latest_us()
                times = kept_times(entry.times, entry.count, now_us, latest_us)
                return role.host(now, replace(entry, times=times))
            case Stage():
                return role.stage(entry)
            case Commit():
                return role.commit(now, entry)
            case Forget() if not role.known.forget(entry.store):
                return InvalidRequestError("address", entry.store, "is there: stop it first")
        role.write(entry)
        return entry

    def _too_large(self, batch: RecordBatch | None) -> DafkaError | None:
        largest_bytes = batch.values.largest_bytes if batch else 0
        limit_bytes, store = self.limit
        if largest_bytes <= limit_bytes:
            return None
        why = f"a record has at most {limit_bytes} bytes at {store} (option max_record_bytes)"
        return InvalidRequestError("value", f"{largest_bytes} bytes", why)

    # -- from the log to the writer --------------------------------------------------------------

    def on_synced(self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None]) -> None:
        """Complete the writers' batches at once, in the log writer's thread.

        The role need not know of them before the writer continues: it has accepted their offsets.
        Of a commit it must.
        """
        for entry, error in zip(entries, outcomes, strict=True):
            if isinstance(entry, RecordBatch) and id(entry) in self._accepted:
                self._complete(entry, error or self._lost(entry))

    def on_written(
        self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None]
    ) -> None:
        """Process the log's outcomes (in the loop)."""
        for entry, error in zip(entries, outcomes, strict=True):
            self._complete(entry, error or self._lost(entry))
        with self._changed:
            self._changed.notify_all()  # ``wait`` waits for other nodes' entries, too

    def _on_dropped(self, batches: Sequence[RecordBatch]) -> None:
        """Fail accepted records that the role has dropped: they never reach the log."""
        for each in batches:
            end = self._role.next_offset(each.tp)
            self._complete(each, OffsetConflictError(*each.tp, each.offset, end))

    def _lost(self, entry: LogEntry) -> DafkaError | None:
        """Return the error of a client's records that another history has replaced since."""
        written: Sequence[RecordBatch | StagedTransaction] = ()
        if isinstance(entry, RecordBatch):
            written = (entry,)
        elif isinstance(entry, Commit):
            written = entry.transactions
        for each in written:
            end = self._role.next_offset(each.tp)
            if end < each.end:
                start = each.offset if isinstance(each, RecordBatch) else each.start
                return OffsetConflictError(*each.tp, start, end)
        return None

    def _complete(self, entry: LogEntry, error: DafkaError | None) -> None:
        _, future = self._accepted.pop(id(entry), (None, None))
        if future is not None:
            _end(future, error, batch.end if (batch := records_of(entry)) else None)

    def close(self, error: BaseException | None = None) -> None:
        """Fail all requests that are not on disk, and later ones: the store has ended."""
        with self._changed:
            self._failure = self._failure or error or ClosedError("store")
            futures = list(self._futures)
            self._changed.notify_all()
        for future in futures:
            _end(future, self._failure)

    def refuse(self, error: DiskFullError | None) -> None:
        """Refuse new requests with an error; None accepts them again."""
        with self._changed:
            self.refusal = error
            self._changed.notify_all()


def _end(future: Future[Any], error: BaseException | None, result: int | None = None) -> None:
    # The store may have failed the future meanwhile, and the writer may have cancelled it.
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _follow(future: Future[Any], done: Future[int]) -> None:
    error = done.exception()
    _end(future, error, None if error else done.result())


def _size(entry: LogEntry | Addition) -> int:
    if isinstance(entry, Addition):
        return entry.size_bytes
    return batch.values.size_bytes if (batch := records_of(entry)) else 0
