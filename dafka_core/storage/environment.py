"""The LMDB environment below the log: one directory, three tables, transactions that grow.

LMDB maps the whole file, and a read transaction sees it as it was when the transaction began.
Two things follow.  Growing the map moves it, which must not happen while anybody reads from it:
the gate and the pins see to that.  And a process may have a directory mapped once only (closing a
second mapping would release the locks by which other processes see that this one still reads), so
everything in a process that opens a directory shares one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import lmdb

from dafka_core.errors import ClosedError, StoreError
from dafka_core.storage.open_environment import (
    Opened,
    affordable_bytes,
    can_map,
    lock_writer,
    open_environment,
)
from dafka_core.storage.rw_lock import RWLock
from dafka_core.storage.storage_errors import DATA_FILE, translated

DEFAULT_MAP_BYTES = 1 << 40
"""Address space, not memory or disk: so much that growing, which waits for readers, is rare."""

PIN_WAIT_S = 10.0
"""How long growing the map waits for snapshots of this process: they end with the query that
reads them, or else it is better to say so than to stand still."""

_PIN_POLL_S = 0.01

T = TypeVar("T")

if TYPE_CHECKING:
    Txn = lmdb.Transaction[memoryview]


class _Map:
    """A directory as it is mapped in this process, and what keeps it so."""

    def __init__(self, opened: Opened, read_only: bool) -> None:
        self.opened = opened
        self.env = opened.env
        self.read_only = read_only
        self.closed = False
        self.gate = RWLock()
        self.writer = threading.Lock()
        self.handles = 0
        self.pins: weakref.WeakSet[Pin] = weakref.WeakSet()

    def begin(self) -> Txn | None:
        """A read transaction; None when another process's file has outgrown the map."""
        try:
            return self.env.begin(buffers=True)
        except lmdb.MapResizedError:
            return None

    def close(self) -> None:
        self.closed = True
        self.env.close()


class Pin:
    """A read transaction that keeps what it sees in place as long as anything refers to the pin.

    Nothing closes it: the last reference does, so that it cannot end too early.
    """

    __slots__ = ("__weakref__", "_map", "txn")

    def __init__(self, mapped: _Map, txn: Txn) -> None:
        self.txn = txn
        self._map = mapped


_maps: weakref.WeakValueDictionary[tuple[int, int, int], _Map] = weakref.WeakValueDictionary()
"""By process (a forked child inherits what it cannot use), device and inode of the data file."""
_maps_lock = threading.Lock()


class Environment:
    """One directory.  Any number of threads may read; writers take turns.

    ``meta``, ``partitions`` and ``blocks`` are the tables, for use in transactions.
    """

    def __init__(self, directory: Path, *, read_only: bool, map_size_bytes: int) -> None:
        self.directory = directory
        self.read_only = read_only
        self._lock_fd = None if read_only else lock_writer(directory)
        try:
            self._map: _Map | None = _shared(directory, read_only, map_size_bytes)
        except BaseException:
            self._unlock()
            raise
        _, self.meta, self.partitions, self.blocks = self._map.opened

    @contextlib.contextmanager
    def reading(self) -> Iterator[Txn]:
        """A read transaction.  What it hands out is valid only inside: copy it.

        A thread must not open a second one inside the first.

        Raises:
            ClosedError: the environment is closed.
            StoreError: LMDB cannot read.
        """
        while True:
            mapped = self._mapped()
            with mapped.gate.shared(), translated(self.directory):
                self._mapped()
                txn = mapped.begin()
                if txn is not None:
                    with txn:
                        yield txn
                    return
            self._grow(mapped, None)

    def pin(self) -> Pin:
        """A read transaction that lasts as long as the pin is referred to.

        Raises:
            ClosedError: the environment is closed.
            StoreError: LMDB cannot read.
        """
        while True:
            mapped = self._mapped()
            with mapped.gate.shared(), translated(self.directory):
                self._mapped()
                txn = mapped.begin()
                if txn is not None:
                    pin = Pin(mapped, txn)
                    mapped.pins.add(pin)
                    return pin
            self._grow(mapped, None)

    def write(self, work: Callable[[Txn], T]) -> T:
        """What ``work`` returns, after all it wrote is on disk; or nothing of it is.

        ``work`` runs again from the start when the map had to grow.

        Raises:
            ClosedError: the environment is closed.
            StoreError: LMDB or the disk cannot take it.
        """
        self.check_writable()
        mapped = self._mapped()
        with mapped.writer:
            while True:
                try:
                    with translated(self.directory):
                        self._mapped()
                        with mapped.env.begin(write=True, buffers=True) as txn:
                            return work(txn)
                except lmdb.MapFullError:
                    self._grow(mapped, 2 * mapped.env.info()["map_size"])
                except lmdb.MapResizedError:
                    self._grow(mapped, None)

    def check_writable(self) -> None:
        """Refuses to write what cannot be written.

        Raises:
            ClosedError: the environment is closed.
            StoreError: it was opened for reading only.
        """
        self._mapped()
        if self.read_only:
            raise StoreError(self.directory, "it was opened for reading only")

    def check_readers(self) -> int:
        """Clears what killed processes left behind, which holds back freed pages; how many.

        Raises:
            ClosedError: the environment is closed.
            StoreError: LMDB cannot do it.
        """
        mapped = self._mapped()
        with mapped.gate.shared(), translated(self.directory):
            self._mapped()
            return mapped.env.reader_check()

    def close(self) -> None:
        """Waits for transactions to end, then closes; a second call does nothing.

        What snapshots have handed out stays valid: the directory stays mapped until the last of
        it is gone.
        """
        mapped = self._map
        if mapped is None:
            return
        with contextlib.ExitStack() as stack:
            if not self.read_only:
                stack.enter_context(mapped.writer)
            stack.enter_context(mapped.gate.exclusive())
            if self._map is None:
                return
            self._map = None
            _leave(mapped)
            self._unlock()

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _mapped(self) -> _Map:
        mapped = self._map
        if mapped is None or mapped.closed:
            raise ClosedError("store's log")
        return mapped

    def _grow(self, mapped: _Map, wanted_bytes: int | None) -> None:
        """Maps ``wanted_bytes``, or, when None, more than the file needs now."""
        with mapped.gate.exclusive():
            self._mapped()
            needed = (mapped.env.info()["last_pgno"] + 1) * mapped.env.stat()["psize"]
            if wanted_bytes is None:
                wanted_bytes = affordable_bytes(2 * needed, needed)
            if not can_map(wanted_bytes):
                raise self._no_room(wanted_bytes, "the process has too little")
            deadline = time.monotonic() + PIN_WAIT_S
            while mapped.pins:
                if time.monotonic() > deadline:
                    raise StoreError(
                        self.directory,
                        f"its map must grow to {wanted_bytes} bytes, which has to wait until no "
                        f"snapshot of this process is in use, and {len(mapped.pins)} still are "
                        f"after {PIN_WAIT_S:g} s; close them and let go of what they handed out",
                    )
                time.sleep(_PIN_POLL_S)
            try:
                mapped.env.set_mapsize(wanted_bytes)
            except (lmdb.Error, MemoryError, OverflowError) as error:
                # LMDB has unmapped the file by now; any further use would end the process.
                mapped.close()
                raise self._no_room(wanted_bytes, str(error)) from error

    def _no_room(self, size_bytes: int, why: str) -> StoreError:
        return StoreError(
            self.directory,
            f"cannot map {size_bytes} bytes of address space ({why}); raise the process's limit "
            "(ulimit -v) and open the store again",
        )


def _shared(directory: Path, read_only: bool, map_size_bytes: int) -> _Map:
    """The process's map of the directory, with one more handle on it."""
    with _maps_lock:
        key = _map_key(directory)
        mapped = _maps.get(key) if key else None
        if mapped is not None and mapped.closed:
            mapped = None
        if mapped is not None and mapped.read_only and not read_only:
            raise StoreError(
                directory,
                "this process has it open for reading only, or still uses what a snapshot of it "
                "handed out; close that first, or write from another process",
            )
        if mapped is None:
            opened = open_environment(directory, read_only=read_only, map_size_bytes=map_size_bytes)
            mapped = _Map(opened, read_only)
            key = _map_key(directory)
            assert key is not None
            _maps[key] = mapped
        mapped.handles += 1
        return mapped


def _leave(mapped: _Map) -> None:
    with _maps_lock:
        mapped.handles -= 1
        # With pins left, the last of them closes the map, since nothing else refers to it.
        if mapped.handles == 0 and not mapped.pins and not mapped.closed:
            mapped.close()


def _map_key(directory: Path) -> tuple[int, int, int] | None:
    try:
        found = (directory / DATA_FILE).stat()
    except OSError:
        return None  # opening it will say what is wrong
    return os.getpid(), found.st_dev, found.st_ino
