"""A transaction of LMDB that says about how much of the file is written in it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lmdb

_TREE_BYTES: Final = 8 * mmap.PAGESIZE
"""What LMDB writes besides, at least: the upper pages of trees, and the list of free pages."""


class CountedTransaction:
    """What the tables and the append area use of a transaction.

    ``written_bytes`` is what LMDB writes for what was put, at most: rows of one page are counted
    as if each had it for itself.
    """

    def __init__(self, txn: lmdb.Transaction[memoryview]) -> None:
        self._txn = txn
        self.get = txn.get
        self.delete = txn.delete
        self.cursor = txn.cursor
        self.stat = txn.stat
        self.written_bytes = _TREE_BYTES

    def put(self, key: bytes, value: bytes | bytearray | memoryview, db: lmdb._Database) -> None:
        """Writes a value, in the place of one that is there."""
        self.written_bytes += len(value) + mmap.PAGESIZE  # its own pages, and that of its key
        self._txn.put(key, value, db=db)

    def scan(
        self, table: lmdb._Database, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, memoryview]]:
        """The entries of a table whose keys begin with ``prefix``, from ``start`` on."""
        cursor = self._txn.cursor(table)
        if not cursor.set_range(start or prefix):
            return  # LMDB's Python binding would go on with the first entry of all
        for key, value in cursor.iternext():
            name = bytes(key)
            if not name.startswith(prefix):
                return
            yield name, value
