"""A transaction of LMDB that counts approximately the bytes written to the file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lmdb

_TREE_BYTES: Final = 8 * mmap.PAGESIZE
"""The least overhead of a write: the upper pages of trees, and the list of free pages."""


class CountedTransaction:
    """The transaction used by the tables and the append area.

    ``written_bytes`` is an upper bound: rows of one page are counted as if each had its own.
    """

    def __init__(self, txn: lmdb.Transaction[memoryview]) -> None:
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
