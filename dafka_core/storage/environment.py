"""The LMDB environment below the log: one directory, three tables, transactions.

LMDB maps the whole file, and a read transaction sees it as it was when the transaction began.  The
map has its full size from the beginning: growing would move it, which LMDB forbids while any
transaction is open (``mdb_env_set_mapsize``).

A process may have a directory mapped only once, since closing a second map would release the locks
by which other processes see that this one still reads (LMDB, "Caveats").  So everything in a
process that opens a directory shares one map.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dafka_core.errors import ClosedError, StoreError
from dafka_core.storage.file_positions import FilePositions
from dafka_core.storage.leases import Lease, LeaseTable
from dafka_core.storage.open_environment import (
    Opened,
    files_at,
    lock_writer,
    open_environment,
)
from dafka_core.storage.storage_errors import DATA_FILE, translated
from dafka_core.storage.tables import Tables

if TYPE_CHECKING:
    import lmdb

DEFAULT_MAP_BYTES = 1 << 40
"""Address space, not memory or disk: more than a store's disk is likely to have."""

T = TypeVar("T")


class Space(NamedTuple):
    """What a directory's file takes, and what readers keep of it.

    The file does not shrink: ``free_bytes`` of ``file_bytes`` hold nothing, and later records go
    there.  While there are leases, some of that cannot be used again yet.
    """

    file_bytes: int
    free_bytes: int
    leases: int
    oldest_lease_s: float


class _Map:
    """A directory as it is mapped in this process, and what keeps it so."""

    def __init__(self, opened: Opened, read_only: bool) -> None:
        self.opened = opened
        self.env = opened.env
        self.read_only = read_only
        self.positions = FilePositions(opened.directory / DATA_FILE)
        self.closed = False
        self.handles = 0
        self.pins: weakref.WeakSet[Pin] = weakref.WeakSet()


class Pin:
    """A read transaction that keeps what it sees in place as long as anything refers to the pin.

    No call closes it: the last reference does, so that it cannot end too early.
    """

    __slots__ = ("__weakref__", "_map", "tables")

    def __init__(self, mapped: _Map) -> None:
        self.tables = Tables(mapped.opened, mapped.env.begin(buffers=True))
        self._map = mapped
        mapped.pins.add(self)


_maps: weakref.WeakValueDictionary[object, _Map] = weakref.WeakValueDictionary()
"""By process (a forked child inherits what it cannot use), device and inode of the data file."""
_maps_lock = threading.Lock()
# In a forked child, a thread that stayed behind would hold it for ever.
os.register_at_fork(
    before=_maps_lock.acquire,
    after_in_parent=_maps_lock.release,
    after_in_child=_maps_lock.release,
)


class Environment:
    """One directory.  Any number of threads may read; LMDB has writers take turns.

    Its methods raise ClosedError after ``close``, and StoreError when LMDB or the disk fails.
    """

    def __init__(self, directory: Path, *, read_only: bool, map_size_bytes: int) -> None:
        self.directory = directory
        self.read_only = read_only
        self._changed = threading.Condition()
        self._uses = 0
        self._lock: FileIO | None = None
        self._leases: LeaseTable | None = None
        self._written_bytes = 0
        try:
            if not read_only:
                # A file closes when it is collected, so that a dropped log locks nobody out.
                self._lock = FileIO(lock_writer(directory))
                self._leases = LeaseTable(directory)
            self._map: _Map | None = _shared(directory, read_only, map_size_bytes)
            # From the root on: the process may change its working directory.
            self._path = directory.absolute()
            with translated(directory):
                self._files = () if read_only else files_at(self._path)
        except BaseException:
            self.release_lock()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tables]:
        """The tables in a read transaction.  What they hand out is valid only inside: copy it.

        A thread must not open a second one inside the first.
        """
        with self._using() as mapped, mapped.env.begin(buffers=True) as txn:
            yield Tables(mapped.opened, txn)

    def pin(self) -> Pin:
        """A read transaction that lasts as long as the pin is referred to."""
        with self._using() as mapped:
            return Pin(mapped)

    def write(self, work: Callable[[Tables], T]) -> T:
        """What ``work`` returns, after all that it wrote is on disk; or none of it is."""
        leases = self.check_writable()
        with self._using() as mapped:
            leases.end_due(self._written_bytes)
            with mapped.env.begin(write=True, buffers=True) as txn:
                tables = Tables(mapped.opened, txn)
                done = work(tables)
                self._written_bytes += tables.written_bytes
                return done

    def lease(self, work: Callable[[Tables, FilePositions], T]) -> tuple[T, Lease | None]:
        """What ``work`` returns of a moment of the log, and a lease of what it saw.

        None if there are as many leases as there may be.
        """
        leases = self.check_writable()
        with self._using() as mapped:
            txn = mapped.env.begin(buffers=True)
            try:
                found = work(Tables(mapped.opened, txn), mapped.positions)
                lease = leases.grant(txn, self._written_bytes)
            except BaseException:
                txn.abort()
                raise
            if lease is None:
                txn.abort()
            return found, lease

    def end_lease(self, lease_id: str) -> None:
        """Ends a lease, if it has not ended yet."""
        leases = self.check_writable()
        with self._using():
            leases.end(lease_id)

    def space(self) -> Space:
        """What the file takes, and what readers keep of it."""
        leases = self.check_writable()
        with self._using() as mapped:
            file_bytes = _file_bytes(mapped)
            leases.end_due(self._written_bytes)
            with mapped.env.begin(buffers=True) as txn:
                used_bytes = _used_bytes(mapped.opened, txn)
            ages_s = leases.ages_s()
            free_bytes = max(file_bytes - used_bytes, 0)
            return Space(file_bytes, free_bytes, len(ages_s), max(ages_s, default=0.0))

    def check_writable(self) -> LeaseTable:
        """The leases; raises if it is closed or was opened for reading only."""
        if self._map is None:
            raise ClosedError("store's log")
        if self._leases is None:
            raise StoreError(self.directory, "it was opened for reading only")
        return self._leases

    def check_in_place(self) -> None:
        """Raises StoreError if the files at its path are not those that it has open for writing.

        A system goes on writing files without a name, and drops them when they are closed.  The
        lock goes with them: a second store may have begun at the path.
        """
        why = ""
        try:
            if self.read_only or files_at(self._path) == self._files:
                return
        except OSError as error:
            why = f" ({error.strerror})"
        raise StoreError(
            self.directory,
            f"the directory or a file in it was removed, renamed or replaced while the store "
            f"ran{why}. What is written from now on would be lost, so nothing more is "
            "acknowledged: put back what was moved away, keep cleaners of temporary files from "
            "it, and start the store again",
        )

    def check_readers(self) -> int:
        """Ends the reads of processes that were killed, which hold back freed pages; how many."""
        with self._using() as mapped:
            return mapped.env.reader_check()

    def close(self) -> None:
        """Waits for transactions to end, then closes; a second call does nothing.

        What snapshots have handed out stays valid: the directory stays mapped until the last of
        it is gone.
        """
        with self._changed:
            mapped, self._map = self._map, None
            self._changed.wait_for(lambda: self._uses == 0)
        if mapped is not None:
            if self._leases is not None:
                self._leases.end_all()
            _leave(mapped)
            if self._leases is not None:
                self._leases.close()
            self.release_lock()

    def release_lock(self) -> None:
        """Closes the descriptor that holds the directory for writing.

        The lock lasts until every copy of the descriptor is closed: in a forked child this leaves
        it to the parent.
        """
        if self._lock is not None:
            self._lock.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[_Map]:
        """The map, which is not closed inside."""
        with self._changed:
            mapped = self._map
            if mapped is None:
                raise ClosedError("store's log")
            self._uses += 1
        try:
            with translated(self.directory):
                yield mapped
        finally:
            with self._changed:
                self._uses -= 1
                self._changed.notify_all()


def _shared(directory: Path, read_only: bool, map_size_bytes: int) -> _Map:
    """The process's map of the directory, with one more handle on it."""
    with _maps_lock:
        mapped = _maps.get(_map_key(directory))
        if mapped is None or mapped.closed:
            opened = open_environment(directory, read_only=read_only, map_size_bytes=map_size_bytes)
            key = _map_key(directory)
            assert key is not None
            mapped = _maps[key] = _Map(opened, read_only)
        elif mapped.read_only and not read_only:
            raise StoreError(
                directory,
                "this process has it open for reading only, or still uses what a snapshot of it "
                "handed out; close that first, or write from another process",
            )
        mapped.handles += 1
        return mapped


def _leave(mapped: _Map) -> None:
    with _maps_lock:
        mapped.handles -= 1
        # With pins left, the last of them closes the map, since nothing else refers to it.
        if mapped.handles == 0 and not mapped.pins:
            mapped.closed = True
            mapped.env.close()


def _used_bytes(opened: Opened, txn: lmdb.Transaction[memoryview]) -> int:
    """What the pages of all tables take, and the file's first two."""
    tables = map(txn.stat, (opened.meta, opened.partitions, opened.blocks))
    stats = [opened.env.stat(), *tables]
    pages = sum(
        each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"] for each in stats
    )
    return (2 + pages) * stats[0]["psize"]


def _file_bytes(mapped: _Map) -> int:
    return (mapped.env.info()["last_pgno"] + 1) * mapped.env.stat()["psize"]


def _map_key(directory: Path) -> tuple[int, int, int] | None:
    try:
        found = (directory / DATA_FILE).stat()
    except OSError:
        return None  # opening it will say what is wrong
    return os.getpid(), found.st_dev, found.st_ino
