"""The rows of the log's tables: their bytes, and access to them in one transaction of LMDB."""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import lmdb
import xxhash

from dafka_core.errors import StoreError
from dafka_core.model.epochs import EPOCH_BYTES, NO_LIFE, Epoch
from dafka_core.model.names import octets_of, quoted, text_of
from dafka_core.model.records import NO_VERSION, PartitionInfo, TopicPartition, Transaction
from dafka_core.storage.storage_errors import damaged

MAX_KEY_BYTES = 511
"""LMDB's limit: two names of 255 bytes, the most that RFC 46's frames carry, and a separator."""

BLOCK_KEY = struct.Struct(">QQ")
"""A block's key: partition id, first offset.  Big endian, so that keys sort as offsets do."""

LAST_OFFSET = 2**64 - 1
NEVER_US = -(2**63)

_CHECKSUM = struct.Struct("<Q")
"""The end of a row: xxh3, 64 bits, of its key and contents.  A damaged row, or one under another
name, would serve other records, or overwrite some."""

CHECKSUM_BYTES = _CHECKSUM.size

_ROW = struct.Struct("<QQQqqB")
"""The fields of each row; the last is the size of the client's name at the row's end.  An epoch
follows, if the partition's producer has one."""

_TRANSACTIONS = struct.Struct("<Qqqq16sqQQ16sQQqQQ")
"""The last fields in the row of a partition with transactions.  Each of the three optional parts
(staged records, the committed attempt, the last transaction) has an end of 0 if missing."""

_REST_BYTES = {e + t for e in (0, EPOCH_BYTES) for t in (0, _TRANSACTIONS.size)}


class StagedRecords(NamedTuple):
    """Staged records beyond a partition's end, up to ``end`` (exclusive).

    ``newest_us`` and ``late_us`` are the row's once they are visible, ``staged_at_us`` is the
    store's time of the last addition.  Of ``transaction``, the version is always known, the end
    only if another store has sent it: that of an attempt is 0.
    """

    end: int
    newest_us: int
    late_us: int
    staged_at_us: int
    attempt: bytes
    transaction: Transaction


class CommittedAttempt(NamedTuple):
    """The last commit: staged by an attempt from ``start`` to ``end`` (exclusive)."""

    attempt: bytes
    start: int
    end: int


_NOT_STAGED = StagedRecords(0, 0, 0, 0, bytes(16), Transaction(0, 0, 0))
_NOT_COMMITTED = CommittedAttempt(bytes(16), 0, 0)
_NO_TRANSACTION = Transaction(NO_VERSION, 0, 0)


class PartitionRow(NamedTuple):
    """The log's row of partition ``tp`` with offsets ``earliest`` to ``end`` (exclusive).

    ``newest_us`` is the greatest timestamp that one of its records has had, and ``late_us`` the
    most by which one was below an earlier record's.  ``last_transaction`` was committed last, here
    or at another store.
    """

    tp: TopicPartition
    id: int
    earliest: int
    end: int
    newest_us: int
    late_us: int
    staged: StagedRecords | None = None
    committed: CommittedAttempt | None = None
    last_transaction: Transaction | None = None
    epoch: Epoch | None = None  # the newest one
    client: str = ""  # the name of the client that writes the partition, if it has one

    @property
    def info(self) -> PartitionInfo:
        """Return the available offsets of the partition."""
        life = self.epoch.life if self.epoch else NO_LIFE
        return PartitionInfo(*self.tp, self.earliest, self.end, life)

    @classmethod
    def parse(cls, tp: TopicPartition, key: bytes, value: memoryview) -> Self:
        """Parse ``packed``; raise ValueError if the row is damaged, or of an unknown form."""
        row = bytes(value[:-CHECKSUM_BYTES])
        at = _ROW.size
        *facts, name_bytes = _ROW.unpack_from(row) if len(row) >= at else (0,)
        end = len(row) - name_bytes
        if end - at not in _REST_BYTES:
            raise ValueError(f"a partition's row cannot have {len(value)} bytes")
        if value[-CHECKSUM_BYTES:] != checksum(key, row):
            raise ValueError("its row does not match its checksum")
        facts = [tp, *facts]
        epoch, client = None, row[end:].decode()
        if (end - at) % _TRANSACTIONS.size == EPOCH_BYTES:
            at += EPOCH_BYTES
            epoch = Epoch.unpack(row[at - EPOCH_BYTES : at])
        if end == at:
            return cls._make((*facts, None, None, None, epoch, client))
        fields = _TRANSACTIONS.unpack_from(row, at)
        staged = StagedRecords._make((*fields[:5], Transaction._make(fields[5:8])))
        committed, last = CommittedAttempt._make(fields[8:11]), Transaction._make(fields[11:])
        found = [each if each.end else None for each in (staged, committed, last)]
        return cls._make((*facts, *found, epoch, client))

    def packed(self, key: bytes) -> bytes:
        """Encode the row for the table, under its key."""
        client = self.client.encode()
        row = _ROW.pack(*self[1:6], len(client))
        row += b"" if self.epoch is None else self.epoch.packed()
        if any((self.staged, self.committed, self.last_transaction)):
            *staged, transaction = self.staged or _NOT_STAGED
            row += _TRANSACTIONS.pack(
                *staged,
                *transaction,
                *(self.committed or _NOT_COMMITTED),
                *(self.last_transaction or _NO_TRANSACTION),
            )
        row += client
        return row + checksum(key, row)

    def with_staged_visible(self) -> Self:
        """Return the row after its staged records become visible."""
        assert self.staged is not None
        end, newest_us, late_us, *_ = self.staged
        return self._replace(end=end, newest_us=newest_us, late_us=late_us, staged=None)

    def with_transaction(self, transaction: Transaction) -> Self:
        """Return the row after a transaction; the newer one becomes its last."""
        last = self.last_transaction
        if transaction.version == NO_VERSION or (last and last.version >= transaction.version):
            return self
        return self._replace(last_transaction=transaction)


def partition_key(tp: TopicPartition) -> bytes:
    """Return the key of a partition's row; raise ValueError if it cannot have one."""
    key = topic_prefix(tp.topic) + _encoded(tp.partition)
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(
            f"{tp}: the names have {len(key) - 1} bytes together, "
            f"a store accepts {MAX_KEY_BYTES - 1}"
        )
    return key


def topic_prefix(topic: str) -> bytes:
    """Return the prefix of the keys of a topic's partitions."""
    return _encoded(topic) + b"\0"


def tp_of_key(key: bytes) -> TopicPartition:
    """Return the partition of a key."""
    topic, _, partition = text_of(key).partition("\0")
    return TopicPartition(topic, partition)


def checksum(key: bytes, row: bytes) -> bytes:
    """Return the checksum of a row, or of another protected value."""
    return _CHECKSUM.pack(xxhash.xxh3_64_intdigest(key + row))


def _encoded(name: str) -> bytes:
    encoded = octets_of(name)
    if b"\0" in encoded:
        raise ValueError(f"the name {quoted(name)} contains a zero byte")
    return encoded


# -- tables in one transaction ---------------------------------------------------------------------

TREE_BYTES: Final = 8 * mmap.PAGESIZE
"""The least overhead of a write: the upper pages of trees, and the list of free pages."""


class Table:
    """A table of LMDB in one transaction.

    ``written_bytes`` is an upper bound: rows of one page are counted as if each had its own.
    """

    def __init__(
        self, txn: lmdb.Transaction[memoryview], db: lmdb._Database, directory: Path
    ) -> None:
        # Also for the report if LMDB aborts, which ``open_environment.py`` searches the stack for.
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

    def lower(self, partition_id: int, offset: int) -> None:
        """Write a partition's offset, if it is below the present one."""
        if offset < self.get(partition_id):
            self.put(partition_id, offset)
