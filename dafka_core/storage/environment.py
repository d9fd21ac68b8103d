"""The LMDB environment below the log: one directory, three tables, transactions that grow.

Opening refuses what is not ours, and a second writer.  LMDB's own errors leave here as
``StoreError``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import lmdb

from dafka_core.errors import ClosedError, StoreError
from dafka_core.storage.gate import Gate

DEFAULT_MAP_BYTES = 64 << 30
"""Address space, not memory or disk: so much that growing, which waits for readers, is rare."""

MIN_MAP_BYTES = 1 << 20
"""Less has no room for the empty tables."""

MAX_READERS = 1024
"""Read transactions at one time, over all processes; each costs 64 bytes of LMDB's lock file."""

DATA_FILE = "data.mdb"
LOCK_FILE = "writer.lock"

_DISK_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""LMDB makes EIO of a write that a disk took in part, which is how a full one begins."""

_FORMAT_VERSION = 1
_FORMAT_KEY = b"format"
_FORMAT = struct.Struct("<I")
_TABLES = (b"meta", b"partitions", b"blocks")

T = TypeVar("T")

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[memoryview]


class Environment:
    """One directory.  Any number of threads may read; writers take turns.

    ``meta``, ``partitions`` and ``blocks`` are the tables, for use in transactions.
    """

    def __init__(self, directory: Path, *, read_only: bool, map_size_bytes: int) -> None:
        self.directory = directory
        self.read_only = read_only
        self._gate = Gate()
        self._writer = threading.Lock()
        self._closed = False
        self._lock_fd = None if read_only else _lock(directory)
        try:
            pages = -(-max(map_size_bytes, MIN_MAP_BYTES) // mmap.PAGESIZE)
            self._env = self._open(pages * mmap.PAGESIZE)
            try:
                with self._translated():
                    self._open_tables()
                    if not read_only:
                        _sync_names(directory)
            except BaseException:
                self._env.close()
                raise
        except BaseException:
            self._unlock()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A read transaction.  What it hands out is valid only inside: copy it.

        A thread must not open a second one inside the first.

        Raises:
            ClosedError: the environment is closed.
            StoreError: LMDB cannot read.
        """
        while True:
            with self._gate.shared(), self._translated():
                self._check_open()
                try:
                    transaction = self._env.begin(buffers=True)
                except lmdb.MapResizedError:
                    transaction = None
                if transaction is not None:
                    with transaction:
                        yield transaction
                    return
            # Another process has made the map larger than ours.
            with self._gate.exclusive():
                self._resize(0)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """What ``work`` returns, after all it wrote is on disk; or nothing of it is.

        ``work`` runs again from the start when the map had to grow.

        Raises:
            ClosedError: the environment is closed.
            StoreError: LMDB or the disk cannot take it.
        """
        if self.read_only:
            raise StoreError(self.directory, "it was opened for reading only")
        with self._writer:
            while True:
                try:
                    with self._translated():
                        self._check_open()
                        with self._env.begin(write=True, buffers=True) as transaction:
                            return work(transaction)
                except lmdb.MapFullError:
                    with self._gate.exclusive():
                        self._resize(2 * self._env.info()["map_size"])

    def close(self) -> None:
        """Waits for transactions to end, then closes; a second call does nothing."""
        with self._writer, self._gate.exclusive():
            self._close()

    def damaged(self, why: str) -> StoreError:
        """The error for a directory whose content is not what was written."""
        return StoreError(
            self.directory,
            f"{why}. Its files are damaged: move the directory away and start the store with an "
            "empty one; it takes what other stores and producers still have",
        )

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()
            self._unlock()

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("store's log")

    def _resize(self, map_size_bytes: int) -> None:
        self._check_open()
        try:
            self._env.set_mapsize(map_size_bytes)
        except (lmdb.Error, MemoryError, OverflowError) as error:
            # LMDB has unmapped the file by now; any further use would end the process.
            self._close()
            raise StoreError(
                self.directory,
                f"cannot map {map_size_bytes} bytes of address space ({error}); raise the "
                "process's limit (ulimit -v) and open the store again",
            ) from error

    def _open(self, map_size_bytes: int) -> lmdb.Environment:
        data = self.directory / DATA_FILE
        if self.read_only and not (data.exists() and data.stat().st_size):
            raise StoreError(self.directory, f"there is no store here (no file {DATA_FILE})")
        with self._translated(opening=True):
            env = lmdb.Environment(
                str(self.directory),
                map_size=map_size_bytes,
                max_dbs=len(_TABLES),
                max_readers=MAX_READERS,
                readonly=self.read_only,
                create=False,
            )
        try:
            with self._translated(opening=True):
                self._complete(env, data)
                env.reader_check()
        except BaseException:
            env.close()
            raise
        return env

    def _complete(self, env: lmdb.Environment, data: Path) -> None:
        """Makes the file as long as LMDB believes it is.

        Reading a page behind the file's end would kill the process.  LMDB itself may leave the
        last pages unwritten when they are free; in a file cut short they hold records, read as
        zeros from here on, and a block of zeros is refused.
        """
        wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        found = data.stat().st_size
        if found >= wanted or found == 0:
            return
        if self.read_only:
            raise StoreError(
                self.directory,
                f"{DATA_FILE} has {found} bytes where {wanted} are expected: it was cut short, or "
                "its last pages are not written yet; open it with 'dafka store' first",
            )
        os.truncate(data, wanted)

    def _open_tables(self) -> None:
        if self._env.stat()["entries"] == 0:
            if self.read_only:
                raise StoreError(self.directory, "there is no store here yet: the file is empty")
            with self._env.begin(write=True) as created:
                tables = [self._env.open_db(name, txn=created) for name in _TABLES]
                created.put(_FORMAT_KEY, _FORMAT.pack(_FORMAT_VERSION), db=tables[0])
        else:
            tables = self._known_tables()
        self.meta, self.partitions, self.blocks = tables

    def _known_tables(self) -> list[lmdb._Database]:
        try:
            tables = [self._env.open_db(name, create=False) for name in _TABLES]
        except (lmdb.NotFoundError, lmdb.IncompatibleError, lmdb.ReadonlyError):
            raise self._foreign("it is another program's LMDB database") from None
        with self._env.begin() as transaction:
            found = transaction.get(_FORMAT_KEY, db=tables[0])
        if found is None or len(found) != _FORMAT.size:
            raise self._foreign("it is another program's LMDB database")
        (version,) = _FORMAT.unpack(found)
        if version != _FORMAT_VERSION:
            raise StoreError(
                self.directory,
                f"its format is {version}, this program reads and writes format {_FORMAT_VERSION}: "
                "open it with the version of Dafka that made it",
            )
        return tables

    def _foreign(self, why: str) -> StoreError:
        return StoreError(
            self.directory,
            f"{DATA_FILE} is not a store's file ({why}): give the store an empty directory, or "
            "move that file away",
        )

    @contextlib.contextmanager
    def _translated(self, opening: bool = False) -> Iterator[None]:
        try:
            yield
        except (lmdb.MapFullError, lmdb.MapResizedError):
            raise
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            if opening:
                raise self._foreign(str(error)) from error
            raise self.damaged(str(error)) from error
        except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            raise self.damaged(str(error)) from error
        except (lmdb.Error, OSError) as error:
            raise StoreError(self.directory, _disk_reason(error)) from error


def _disk_reason(error: lmdb.Error | OSError) -> str:
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    if isinstance(error, lmdb.DiskError) or code in _DISK_CODES:
        return f"the disk is full or fails ({error}); nothing of this was written: free some space"
    if isinstance(error, lmdb.PanicError):
        return f"an earlier write failed halfway ({error}); open the store again"
    if isinstance(error, lmdb.ReadersFullError):
        return f"more than {MAX_READERS} reads at one time ({error})"
    return f"{error}"


def _lock(directory: Path) -> int:
    """A descriptor that holds the directory for this process until it is closed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        reason = f"it cannot be opened for writing ({error.strerror})"
        raise StoreError(directory, reason) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise StoreError(
            directory,
            f"process {owner} has it open for writing; stop that store, or give this one a "
            "directory of its own",
        ) from error
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _sync_names(directory: Path) -> None:
    """Puts the names of new files on disk; syncing a file does not promise that of its name."""
    _sync_directory(directory)
    with contextlib.suppress(PermissionError):  # the parent may be another user's; it stood before
        _sync_directory(directory.resolve().parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
