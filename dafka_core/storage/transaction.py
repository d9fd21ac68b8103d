"""A transaction of LMDB that counts approximately the bytes written, and checked tables in it."""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dafka_core.errors import StoreError
from dafka_core.storage.rows import CHECKSUM_BYTES, checksum
from dafka_core.storage.storage_errors import damaged

if TYPE_CHECKING:
    import lmdb

_TREE_BYTES: Final = 8 * mmap.PAGESIZE
"""The least overhead of a write: the upper pages of trees, and the list of free pages."""


class CountedTransaction:
    """The transaction used by the tables and the append area.

    ``written_bytes`` is an upper bound: rows of one page are counted as if each had its own.
    """

    def __init__(self, txn: lmdb.Transaction[memoryview], directory: Path) -> None:
        # Also for the report if LMDB aborts, which searches the stack for it (``mapped_file.py``).
        self.directory = directory
        self._txn = txn
        self.get = txn.get
        self.delete = txn.delete
        self.cursor = txn.cursor
        self.stat = txn.stat
        self.written_bytes = _TREE_BYTES

    def put(self, key: bytes, value: bytes | bytearray | memoryview, db: lmdb._Database) -> None:
        """Write a value, replacing an existing one."""
        self.written_bytes += len(value) + mmap.PAGESIZE  # its own pages, and that of its key
        self._txn.put(key, value, db=db)

    def scan(
        self, table: lmdb._Database, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the entries of a table whose keys begin with ``prefix``, from ``start`` on."""
        cursor = self._txn.cursor(table)
        if not cursor.set_range(start or prefix):
            return  # LMDB's Python binding would continue with the first entry of all
        for key, value in cursor.iternext():
            name = bytes(key)
            if not name.startswith(prefix):
                return
            yield name, value


class CheckedTable:
    """The entries of a table whose keys begin with a prefix; each value ends with a checksum.

    ``description`` returns the words for an entry in errors.  Its methods raise StoreError if an
    entry does not match its checksum.
    """

    def __init__(
        self,
        txn: CountedTransaction,
        db: lmdb._Database,
        prefix: bytes,
        description: Callable[[bytes], str],
    ) -> None:
        self._txn, self._db = txn, db
        self._prefix, self._description = prefix, description

    def get(self, name: bytes) -> bytes | None:
        """Return the content of an entry, if it exists."""
        found = self._txn.get(self._prefix + name, db=self._db)
        return None if found is None else self._content(name, found)

    def put(self, name: bytes, content: bytes | None) -> None:
        """Write an entry, replacing an existing one; or delete it (None)."""
        key = self._prefix + name
        if content is None:
            self.delete(name)
        else:
            self._txn.put(key, content + checksum(key, content), db=self._db)

    def delete(self, name: bytes) -> bool:
        """Delete an entry, damaged or not; return False if it is unknown."""
        return self._txn.delete(self._prefix + name, db=self._db)

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the names that begin with some bytes, in order, and their contents."""
        for key, value in self._txn.scan(self._db, self._prefix + start):
            name = key[len(self._prefix) :]
            yield name, self._content(name, value)

    def _content(self, name: bytes, value: memoryview) -> bytes:
        content = bytes(value[:-CHECKSUM_BYTES])
        if value[-CHECKSUM_BYTES:] != checksum(self._prefix + name, content):
            why = f"{self._description(name)} does not match its checksum"
            raise damaged(self._txn.directory, why)
        return content


class OffsetTable:
    """An offset for each partition, by its id, in one transaction; 0 if unknown or damaged."""

    _NUMBER: Final = struct.Struct(">Q")

    def __init__(self, txn: CountedTransaction, db: lmdb._Database, prefix: bytes) -> None:
        self._table = CheckedTable(txn, db, prefix, repr)

    def get(self, partition_id: int) -> int:
        """Return a partition's offset."""
        with contextlib.suppress(StoreError):
            if found := self._table.get(self._NUMBER.pack(partition_id)):
                return int.from_bytes(found)
        return 0

    def put(self, partition_id: int, offset: int) -> None:
        """Write a partition's offset."""
        self._table.put(self._NUMBER.pack(partition_id), self._NUMBER.pack(offset))
