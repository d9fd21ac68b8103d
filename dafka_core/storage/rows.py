"""Keys and rows of the log's tables, as bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Self

import xxhash

from dafka_core.records import NO_VERSION, TopicPartition, Transaction

if TYPE_CHECKING:
    import lmdb

MAX_KEY_BYTES = 511
"""LMDB's limit: two names of 255 octets, the most the wire can carry, and the octet between."""

BLOCK = struct.Struct(">QQ")
"""A block's key: partition id, first offset.  Big endian, so that keys sort as offsets do."""

LAST_OFFSET = 2**64 - 1
NEVER_US = -(2**63)

_CHECKSUM = struct.Struct("<Q")
"""The end of a row: xxh3, 64 bits, of its key and of what precedes.  A row that is damaged, or has
come under another name, would have other records served, or have some written over."""

_ROW = struct.Struct("<QQQq")
_UNITS = struct.Struct("<Qq16sqQQ16sQQqQQ")
"""What follows it in the row of a partition that units are written to: all zeros for what there
is not, since everything that can be missing has an end above zero."""


class StagedRecords(NamedTuple):
    """What is staged beyond a partition's end, up to ``end`` (exclusive).

    Of ``transaction``, the number is always known.  Its end is 0 until an attempt has committed it.
    """

    end: int
    last_timestamp_us: int
    attempt: bytes
    transaction: Transaction


class CommittedAttempt(NamedTuple):
    """What was committed last: an attempt's tail from ``start`` to ``end`` (exclusive)."""

    attempt: bytes
    start: int
    end: int


_NO_UNITS = (None, None, None)
_NO_TAIL = (0, 0, bytes(16), 0, 0, 0)
_NOT_COMMITTED = CommittedAttempt(bytes(16), 0, 0)
_NO_MARKER = Transaction(NO_VERSION, 0, 0)


class PartitionRow(NamedTuple):
    """What the log knows of a partition: offsets ``earliest`` to ``end`` (exclusive) are held.

    ``marker`` is the last unit that was committed here or at another store.
    """

    id: int
    earliest: int
    end: int
    last_timestamp_us: int
    tail: StagedRecords | None = None
    committed: CommittedAttempt | None = None
    marker: Transaction | None = None

    @classmethod
    def parse(cls, key: bytes, value: memoryview) -> Self:
        """The row that ``packed`` made.

        Raises:
            ValueError: it is damaged, or of no form that there is.
        """
        row = bytes(value[: -_CHECKSUM.size])
        if len(row) not in (_ROW.size, _ROW.size + _UNITS.size):
            raise ValueError(f"a partition's row cannot have {len(value)} octets")
        if value[-_CHECKSUM.size :] != _checksum(key, row):
            raise ValueError("its row does not match its checksum")
        if len(row) == _ROW.size:
            return cls._make(_ROW.unpack(row) + _NO_UNITS)
        tail_end, tail_us, attempt, *facts = _UNITS.unpack_from(row, _ROW.size)
        tail = (
            StagedRecords(tail_end, tail_us, attempt, Transaction._make(facts[:3]))
            if tail_end
            else None
        )
        committed, marker = CommittedAttempt._make(facts[3:6]), Transaction._make(facts[6:])
        transactions = tail, committed if committed.end else None, marker if marker.end else None
        return cls._make((*_ROW.unpack_from(row), *transactions))

    def packed(self, key: bytes) -> bytes:
        """The row as it lies in the table under its key."""
        row = _ROW.pack(*self[:4])
        if (self.tail, self.committed, self.marker) != _NO_UNITS:
            tail = self.tail
            row += _UNITS.pack(
                *((*tail[:3], *tail.transaction) if tail else _NO_TAIL),
                *(self.committed or _NOT_COMMITTED),
                *(self.marker or _NO_MARKER),
            )
        return row + _checksum(key, row)


def partition_key(tp: TopicPartition) -> bytes:
    """The key of a partition's row.

    Raises:
        ValueError: the names are too long, or not what can be told apart again.
    """
    key = topic_prefix(tp.topic) + _encoded(tp.partition)
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(
            f"the names of topic {tp.topic!r} and partition {tp.partition!r} have {len(key) - 1} octets "
            f"together, a store takes {MAX_KEY_BYTES - 1}"
        )
    return key


def topic_prefix(topic: str) -> bytes:
    """What the keys of a topic's partitions begin with."""
    return _encoded(topic) + b"\0"


def names(key: bytes) -> TopicPartition:
    """The topic and the partition of a row's key."""
    topic, _, partition = key.decode("utf-8", "surrogateescape").partition("\0")
    return TopicPartition(topic, partition)


def seek_block(cursor: lmdb.Cursor[memoryview], partition_id: int, offset: int) -> int | None:
    """Moves to a partition's last block that begins at ``offset`` or before.

    Returns the block's first offset, or None when there is no such block.
    """
    at_or_after = cursor.set_range(BLOCK.pack(partition_id, offset))
    if at_or_after and BLOCK.unpack(cursor.key()) == (partition_id, offset):
        return offset
    if not (cursor.prev() if at_or_after else cursor.last()):
        return None
    found, first = BLOCK.unpack(cursor.key())
    return int(first) if found == partition_id else None


def _encoded(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ValueError(f"the name {name!r} contains a zero octet")
    return encoded


def _checksum(key: bytes, row: bytes) -> bytes:
    return _CHECKSUM.pack(xxhash.xxh3_64_intdigest(key + row))
