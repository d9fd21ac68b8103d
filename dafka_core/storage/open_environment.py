"""Opening of a store's directory: the format, the file system, the single writer, and the map.

LMDB maps the file.  The system sends SIGBUS to the thread that touches a mapped page which the disk
cannot read, or after the end of a truncated file.  LMDB aborts if a damaged tree violates its
assertions.  Both end the process nearly silently.  The handler here runs in that thread, inside
LMDB, where no error can be raised.  It logs the reason, and ends the process with exit code 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import inspect
import logging
import mmap
import os
import signal
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import numpy as np

from dafka_core.errors import StoreError
from dafka_core.model.records import TopicPartition
from dafka_core.storage.leases import LEASE_FILE
from dafka_core.storage.storage_errors import (
    BACKUP_MANIFEST,
    DATA_FILE,
    MAX_READERS,
    foreign,
    translated,
)
from dafka_core.system.files import OWNERS_ALONE, make_directory, mode_within, sync

_log: Final = logging.getLogger("dafka.store")

FORMAT_KEY: Final = b"format"
FORMAT_VALUE: Final = struct.Struct("<I")
"""The entry of the table ``meta`` with the format's number."""

FORMAT: Final = 6
"""In earlier formats partitions had no names of clients, and no checksum covered the partition of
records that were set aside."""

NOT_LOCAL: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0xAAD7AAEA: "PanFS",
    0xBEEFDEAD: "StorNext",
    0x786F4256: "a folder that VirtualBox shares",
    0xBACBACBC: "a folder that VMware shares",
    0x7C7C6673: "a folder that Parallels shares",
    0x65735546: "FUSE",
}
"""Network and FUSE file systems, by the type that statfs(2) returns: they guarantee neither that
maps and writes are consistent, nor that a synced page is on a disk.

Overlay file systems, the default of containers, are allowed: a file that is open for writing is in
the upper layer, a directory of this machine.  A process that opened the file earlier keeps seeing
the lower layer's file, so readers open it after the store has.  A reader in another container has
another overlay, and does not find its lease there."""

ANY_FILE_SYSTEM: Final = "DAFKA_ANY_FILE_SYSTEM"
"""The environment's variable that allows them, as in gVisor and rootless Podman, which report local
directories as 9p or FUSE."""

_STATFS_BYTES: Final = 1_024
"""More than any system's ``struct statfs``, which begins with the type, a long."""


def not_local(directory: Path | str) -> str | None:
    """Return the name of a directory's file system, if it is not a local one."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(directory), found) != 0:
        return None  # opening it reports the error
    kind = ctypes.c_long.from_buffer(found).value
    return NOT_LOCAL.get(kind & 0xFFFFFFFF)


LOCK_FILE = "writer.lock"

READERS_FILE: Final = "lock.mdb"  # LMDB's list of read transactions, which it writes through a map

_READERS_BYTES: Final = MAX_READERS * 64 + 128
"""Its size in LMDB: an entry is a cache line, and two have its locks."""

OPEN_FILES: Final = (LOCK_FILE, DATA_FILE, READERS_FILE, LEASE_FILE)
"""Files that a store keeps open."""

_UNUSED: Final = struct.pack("=IqQQ", 0xBEEFC0DE, -1, 1, 0)
"""In a header page (LMDB's ``MDB_meta``) before the first transaction: the mark of LMDB's files, no
tables' root, the last page, and the transaction's number."""

MIN_MAP_BYTES = 1 << 20  # less has no room for the empty tables

_TABLES = (b"meta", b"partitions", b"blocks")


class Opened(NamedTuple):
    """A directory's LMDB environment with the tables of a store."""

    directory: Path
    env: lmdb.Environment
    damaged: set[TopicPartition]  # in which a read has found damage
    meta: lmdb._Database
    partitions: lmdb._Database
    blocks: lmdb._Database


def open_environment(directory: Path, *, map_size_bytes: int) -> Opened:
    """Open the directory's database, which is created if missing.

    It maps ``map_size_bytes``, or twice the file's size if that is more, as far as the process may
    map this much; LMDB itself maps at least the used part of the file.  Raises StoreError if it is
    damaged, or is not a store's.
    """
    data = directory / DATA_FILE
    with translated(directory, opening=True):
        size_bytes = data.stat().st_size if data.exists() else 0
        if 0 < size_bytes <= 2 * mmap.PAGESIZE and _is_unused(data.read_bytes()):
            os.truncate(data, 0)
        _reserve_readers(directory)
        env = environment(
            directory,
            max(map_size_bytes, 2 * size_bytes),
            max_readers=MAX_READERS,
            create=False,
            mode=mode_within(directory),
        )
    try:
        with translated(directory, opening=True):
            sync(data)  # a new file's header, before a transaction makes it longer
            _complete(env, directory)
        with translated(directory):
            opened = open_tables(env, directory)
            sync(directory)
    except BaseException:
        env.close()
        raise
    return opened


def environment(path: Path, wanted_bytes: int, **options: Any) -> lmdb.Environment:
    """Open LMDB's environment with the largest map up to a size that the system supports."""
    map_size_bytes = affordable_bytes(wanted_bytes)
    while True:
        try:
            return lmdb.Environment(
                str(path), map_size=map_size_bytes, max_dbs=len(_TABLES), **options
            )
        except lmdb.Error as error:
            # The largest file of a FAT is 4 GiB, of ext3 2 TiB.
            if getattr(error, "code", 0) != errno.EOVERFLOW or map_size_bytes <= MIN_MAP_BYTES:
                raise
            map_size_bytes //= 2


def _is_unused(head: bytes) -> bool:
    """Return True if a file's first two pages are LMDB's before its first transaction.

    After a power cut before their sync, parts may be zeros or missing.  The header of a later
    transaction belongs to a file that was truncated.
    """
    return all(
        not any(page) or (page[16:20] + page[128:152] == _UNUSED and not any(page[152:]))
        for page in (head[: mmap.PAGESIZE], head[mmap.PAGESIZE :])
    )


def affordable_bytes(wanted_bytes: int) -> int:
    """Return as much of ``wanted_bytes`` of address space as can be mapped.

    At least ``MIN_MAP_BYTES``.  A limit (ulimit -v) must leave as much again to the rest of the
    process.
    """
    size_bytes = max(wanted_bytes, MIN_MAP_BYTES)
    while size_bytes > MIN_MAP_BYTES and not _can_map(2 * size_bytes):
        size_bytes = max(size_bytes // 2, MIN_MAP_BYTES)
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _can_map(size_bytes: int) -> bool:
    try:
        # No access: this takes only address space, whatever the system's policy.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mmap.mmap(-1, size_bytes, flags=flags, prot=0).close()
    except (OSError, OverflowError, ValueError):
        return False
    return True


def files_at(directory: Path) -> tuple[tuple[int, int], ...]:
    """Return device and inode of each open file of a store at a path; raise OSError without one."""
    found = ((directory / name).stat() for name in OPEN_FILES)
    return tuple((each.st_dev, each.st_ino) for each in found)


def check_local(directory: Path) -> None:
    """Raise StoreError if the directory is on a file system that a store cannot use."""
    name = not_local(directory)
    if name is None:
        return
    if os.environ.get(ANY_FILE_SYSTEM) != "true":
        raise StoreError(
            directory,
            f"it is on {name}, where maps, locks and syncs are not reliable: give the store a "
            f"directory on a local disk, or set {ANY_FILE_SYSTEM}=true in the environment if a "
            "container reports a local disk so",
        )
    _check_map(directory, name)
    text = (
        "the store in %s is on %s: it may lose records in a power cut, if syncs do not reach a disk"
    )
    _log.warning(text, directory, name, extra={"event": "file_system_not_local"})


def _check_map(directory: Path, name: str) -> None:
    """Raise StoreError if a map does not contain what is written: LMDB would read other records."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(bytes(mmap.PAGESIZE))
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            before = mapped[:]
            os.pwrite(file.fileno(), b"x", 0)
            if before == mapped[:]:
                why = "where maps do not contain what is written: use a local disk"
                raise StoreError(directory, f"it is on {name}, {why}")


def lock_writer(directory: Path) -> int:
    """Return a descriptor that holds the directory for this process until it is closed.

    Raises StoreError if another process holds it, or it cannot be created.
    """
    _make(directory)
    try:
        check_local(directory)
        if (directory / BACKUP_MANIFEST).exists():
            why = (
                "it is a backup, which a store must not change: restore it to another directory "
                "('dafka store restore DIR --from BACKUP')"
            )
            raise StoreError(directory, why)
        fd = os.open(
            directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode_within(directory)
        )
    except OSError as error:
        reason = f"it cannot be opened for writing ({error.strerror})"
        raise StoreError(directory, reason) from error
    try:
        _lock(directory, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make(directory: Path) -> None:
    try:
        make_directory(directory, OWNERS_ALONE)
    except OSError as error:
        why = f"it cannot be created ({error.strerror}): choose another directory (--dir)"
        # ``Path.exists`` raises for a name that is too long.
        above = (directory, *directory.absolute().parents)
        found = next(each for each in above if os.path.exists(each))  # noqa: PTH110
        if not found.is_dir():
            why = f"{found} is a file: name a directory, which is created if missing"
        raise StoreError(directory, why) from error


def _lock(directory: Path, fd: int) -> None:
    with translated(directory):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            raise StoreError(
                directory,
                f"process {owner} has it open for writing; stop that store, or give this store "
                "another directory",
            ) from error
        # Truncated only then: on a full disk the file would not get its page back.
        os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()}\n".encode(), 0))


def _reserve_readers(directory: Path) -> None:
    """Allocate the pages of LMDB's list of readers on the disk.

    Writing to a map without a page on the disk kills the process (SIGBUS).  This precedes LMDB's
    opening of the file: closing another descriptor of it later would release LMDB's locks.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(directory / READERS_FILE, flags, mode_within(directory))
    try:
        os.posix_fallocate(fd, 0, max(os.fstat(fd).st_size, _READERS_BYTES))
    finally:
        os.close(fd)


def _complete(env: lmdb.Environment, directory: Path) -> None:
    """Extend the file to the length that LMDB expects.

    Reading a page after the file's end would kill the process.  LMDB may leave the last pages
    unwritten if they are free.  In a truncated file they held records: those are read as zeros from
    here on, and a block of zeros is refused.
    """
    data = directory / DATA_FILE
    wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    found = data.stat().st_size
    if 0 < found < wanted:
        os.truncate(data, wanted)


def open_tables(env: lmdb.Environment, directory: Path) -> Opened:
    """Open the tables of a database, and create them in an empty one.

    Raises StoreError if they are not a store's, or of a format that this program does not read.
    """
    handle_faults()
    if env.stat()["entries"] == 0:
        with env.begin(write=True) as txn:
            tables = [env.open_db(name, txn=txn) for name in _TABLES]
            txn.put(FORMAT_KEY, FORMAT_VALUE.pack(FORMAT), db=tables[0])
        return Opened(directory, env, set(), *tables)
    try:
        tables = [env.open_db(name, create=False) for name in _TABLES]
        with env.begin() as txn:
            (found,) = FORMAT_VALUE.unpack(txn.get(FORMAT_KEY, b"", db=tables[0]))
    except (lmdb.NotFoundError, lmdb.IncompatibleError, lmdb.ReadonlyError, struct.error):
        raise foreign(directory, "it is another program's LMDB database") from None
    if found != FORMAT:
        why = f"its format is {found}, this program reads format {FORMAT}"
        raise StoreError(directory, f"{why}: open it with the version of Dafka that wrote it")
    return Opened(directory, env, set(), *tables)


# -- the mapped file -------------------------------------------------------------------------------

_MAPS: Final = Path("/proc/self/maps")


def mapping_at(address: int) -> tuple[range, int, str]:
    """Return the mapping at an address, by how much it is above the file's positions, and the file.

    The name is empty if nothing is mapped.
    """
    with contextlib.suppress(OSError):
        for line in os.fsdecode(_MAPS.read_bytes()).split("\n")[:-1]:  # names may have any bytes
            # As in: 7f0e5c000000-7f0e5d000000 r--s 00000000 fe:00 1234   /data/data.mdb
            bounds, _, offset, *_, path = line.split(maxsplit=5)
            span = range(*(int(bound, 16) for bound in bounds.split("-")))
            if address in span:
                return span, span.start - int(offset, 16), path
    return range(0), 0, ""


_PAGE: Final = struct.Struct("<QHHI")
"""The header of LMDB's pages: number, unused, flags, and the count of a large value's pages."""

_OVERFLOW: Final = 4  # the flag of a large value's pages (P_OVERFLOW)


class FilePositions:
    """Positions in one file, which this process has mapped.  Thread-safe."""

    def __init__(self, data: Path) -> None:
        self._data = data
        # The mapped range, and the difference of an address in it and its position. Assigned
        # together, since threads read concurrently.
        self._mapped = range(0), 0

    def of(self, packed: memoryview) -> int:
        """Return the bytes' position in the file; StoreError if the system does not report it."""
        address = int(np.frombuffer(packed, np.uint8).__array_interface__["data"][0])
        region, shift = self._mapped
        if address not in region:
            region, shift, path = mapping_at(address)
            if not path.endswith(f"/{self._data.name}"):
                why = f"{_MAPS} does not contain {self._data.name}: read it over Flight"
                raise StoreError(self._data.parent, why)
            self._mapped = region, shift
        return address - shift

    def is_whole(self, packed: memoryview) -> bool:
        """Return False if LMDB would free other pages than those of this value.

        A large value has pages of its own, and the header of the first says how many.
        """
        position = self.of(packed)
        page, at = divmod(position, mmap.PAGESIZE)
        if at != _PAGE.size:  # a small value, in a page of the tree
            return True
        with self._data.open("rb") as file:
            file.seek(position - at)
            number, _, flags, count = _PAGE.unpack(file.read(at))
        pages = -(-(at + len(packed)) // mmap.PAGESIZE)
        return (number, flags, count) == (page, _OVERFLOW, pages)


_FIXED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
"""With Linux's MAP_FIXED, which Python does not have."""

_SIGINFO: Final = 4

_libc: Final = ctypes.CDLL(None)

_first: Final = threading.Lock()  # held for ever: twice, the handler would be its own predecessor

_previous: Final = {each: (ctypes.c_size_t * 19)() for each in (signal.SIGBUS, signal.SIGABRT)}
"""``struct sigaction`` of Linux: the handler, 16 words of a mask, flags, one for the C library."""

_noted: dict[Path, dict[int, str]] = {}


def handle_faults() -> None:
    """Handle both signals in this process; those of other files act as before."""
    if sys.platform == "linux" and _first.acquire(blocking=False):
        action = (ctypes.c_size_t * 19)()
        action[0], action[17] = ctypes.cast(_handler, ctypes.c_void_p).value or 0, _SIGINFO
        for number, previous in _previous.items():
            _libc.sigaction(number, action, previous)


@contextlib.contextmanager
def faults_noted(file: Path) -> Iterator[dict[int, str]]:
    """Read a file's unreadable pages as zeros, and note the reason by position in the file.

    Only for a file that is not written: LMDB would write results of the zeros.
    """
    file = file.resolve()
    try:
        yield _noted.setdefault(file, {})
    finally:
        del _noted[file]


def _on_fault(number: int, info: Any, _context: int | None) -> None:
    # An error that left this function would be dropped, and the instruction would fault for ever.
    with contextlib.suppress(Exception):
        if number == signal.SIGABRT:
            for frame, _ in traceback.walk_stack(inspect.currentframe()):
                directory = getattr(frame.f_locals.get("self"), "directory", None)
                if isinstance(directory, Path):
                    _end(directory, f"LMDB cannot continue at a damaged page of {DATA_FILE}")
        span, shift, name = mapping_at(info[2])  # the address, in siginfo_t
        if number == signal.SIGBUS and name.endswith(".mdb"):
            page = info[2] // mmap.PAGESIZE * mmap.PAGESIZE
            return _end_or_note(Path(name), page - shift, page, span.stop - page)
    _libc.sigaction(number, _previous[signal.Signals(number)], None)
    signal.raise_signal(number)
    return None


_handler: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p
)(_on_fault)


def _end_or_note(path: Path, position: int, page: int, rest_bytes: int) -> None:
    size_bytes, reason = mmap.PAGESIZE, "it can be read again now"
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(position)
            if not file.read(mmap.PAGESIZE):
                size_bytes, reason = rest_bytes, f"the file ends at byte {path.stat().st_size}"
    except OSError as error:
        reason = f"{error.strerror}"
    why = f"{path.name} cannot be read from byte {position} on ({reason})"
    if path in _noted:
        where, size = ctypes.c_void_p(page), ctypes.c_size_t(size_bytes)
        if _libc.mmap(where, size, mmap.PROT_READ, _FIXED, -1, ctypes.c_long(0)) != -1:
            _noted[path][position] = why
            return
    _end(path.parent, why)


def _end(directory: Path, why: str) -> None:
    why += (
        ", so this process ends. 'dafka store verify' lists what is lost. If the disk is failing, "
        "start the store with an empty directory on another disk; it copies all records that other "
        "stores and producers still have"
    )
    _log.critical("%s", StoreError(directory, why), extra={"event": "page_unreadable"})
    os._exit(1)
