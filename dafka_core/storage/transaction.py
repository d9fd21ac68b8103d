"""The tables of one LMDB transaction, with the number of bytes written, and checked entries."""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb

from dafka_core.errors import StoreError
from dafka_core.storage.rows import CHECKSUM_BYTES, checksum
from dafka_core.storage.storage_errors import damaged

TREE_BYTES: Final = 8 * mmap.PAGESIZE
"""The least overhead of a write: the upper pages of trees, and the list of free pages."""


class Table:
    """A table of LMDB in one transaction.

    ``written_bytes`` is an upper bound: rows of one page are counted as if each had its own.
    """

    def __init__(
        self, txn: lmdb.Transaction[memoryview], db: lmdb._Database, directory: Path
    ) -> None:
        # Also for the report if LMDB aborts, which searches the stack for it (``mapped_file.py``).
        self.directory = directory
        self.written_bytes = 0
        self._txn, self._db = txn, db

    def __len__(self) -> int:
        return self._txn.stat(self._db)["entries"]

    def get(self, key: bytes) -> memoryview | None:
        """Return the value of a key, valid until the transaction's next write."""
        return self._txn.get(key, db=self._db)

    def cursor(self) -> lmdb.Cursor[memoryview]:
        """Return a new cursor of LMDB."""
        return self._txn.cursor(self._db)

    def delete(self, key: bytes) -> bool:
        """Delete an entry; return False if it is unknown."""
        return self._txn.delete(key, db=self._db)

    def put(self, key: bytes, value: bytes | bytearray | memoryview) -> None:
        """Write a value, replacing an existing one."""
        self.written_bytes += len(value) + mmap.PAGESIZE  # its own pages, and that of its key
        self._txn.put(key, value, db=self._db)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, memoryview]]:
        """Yield the entries whose keys begin with ``prefix``, from ``start`` on."""
        cursor = self.cursor()
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

    def __init__(self, table: Table, prefix: bytes, description: Callable[[bytes], str]) -> None:
        self._table, self._prefix, self._description = table, prefix, description

    def get(self, name: bytes) -> bytes | None:
        """Return the content of an entry, if it exists."""
        found = self._table.get(self._prefix + name)
        return None if found is None else self._content(name, found)

    def put(self, name: bytes, content: bytes | None) -> None:
        """Write an entry, replacing an existing one; or delete it (None)."""
        key = self._prefix + name
        if content is None:
            self.delete(name)
        else:
            self._table.put(key, content + checksum(key, content))

    def delete(self, name: bytes) -> bool:
        """Delete an entry, damaged or not; return False if it is unknown."""
        return self._table.delete(self._prefix + name)

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the names that begin with some bytes, in order, and their contents."""
        for key, value in self._table.scan(self._prefix + start):
            name = key[len(self._prefix) :]
            yield name, self._content(name, value)

    def _content(self, name: bytes, value: memoryview) -> bytes:
        content = bytes(value[:-CHECKSUM_BYTES])
        if value[-CHECKSUM_BYTES:] != checksum(self._prefix + name, content):
            why = f"{self._description(name)} does not match its checksum"
            raise damaged(self._table.directory, why)
        return content


class OffsetTable:
    """An offset for each partition, by its id, in one transaction; 0 if unknown or damaged."""

    _NUMBER: Final = struct.Struct(">Q")

    def __init__(self, table: Table, prefix: bytes) -> None:
        self._table = CheckedTable(table, prefix, repr)

    def get(self, partition_id: int) -> int:
        """Return a partition's offset."""
        with contextlib.suppress(StoreError):
            if found := self._table.get(self._NUMBER.pack(partition_id)):
                return int.from_bytes(found)
        return 0

    def put(self, partition_id: int, offset: int) -> None:
        """Write a partition's offset."""
        self._table.put(self._NUMBER.pack(partition_id), self._NUMBER.pack(offset))
