"""How far each partition's blocks were looked at for compression, and the format of a log.

In the table ``meta``:

    "format"               ->  the format's number
    "cold of ", id         ->  offset up to which a partition's blocks were looked at, checksum
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from dafka_core.storage.counted_transaction import CountedTransaction
from dafka_core.storage.rows import checksum

if TYPE_CHECKING:
    import lmdb

FORMAT_KEY: Final = b"format"
FORMAT_VALUE: Final = struct.Struct("<I")

FORMAT: Final = 4
"""In format 1, rows of partitions had no checksum, so that damage of a row was not found.  In
format 2 there was no append area, and in format 3 no compressed block: a program that does not know
them would miss their records."""

FORMAT_AT_FIRST: Final = 3
"""A log becomes format 4 with its first compressed block."""

_PREFIX: Final = b"cold of "
_OFFSET: Final = struct.Struct(">Q")


class ColdMarks:
    """The marks in one transaction of LMDB."""

    def __init__(self, txn: CountedTransaction, meta: lmdb._Database) -> None:
        self._txn = txn
        self._meta = meta

    @property
    def log_format(self) -> int:
        """The log's format."""
        found: int = FORMAT_VALUE.unpack(self._txn.get(FORMAT_KEY, db=self._meta) or b"")[0]
        return found

    def of(self, partition_id: int) -> int:
        """Up to which offset a partition's blocks were looked at; 0 if that is not known."""
        key = _PREFIX + _OFFSET.pack(partition_id)
        found = bytes(self._txn.get(key, db=self._meta) or b"")
        value = found[: _OFFSET.size]
        return _OFFSET.unpack(value)[0] if found == value + checksum(key, value) else 0

    def put(self, partition_id: int, offset: int, *, compressed: bool) -> None:
        """Notes how far a partition was looked at, and whether there is a compressed block now."""
        key, value = _PREFIX + _OFFSET.pack(partition_id), _OFFSET.pack(offset)
        self._txn.put(key, value + checksum(key, value), db=self._meta)
        if compressed and self.log_format < FORMAT:
            self._txn.put(FORMAT_KEY, FORMAT_VALUE.pack(FORMAT), db=self._meta)
