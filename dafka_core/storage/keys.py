"""Keys and rows of the log's tables, as bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    import lmdb

MAX_KEY_BYTES = 511
"""LMDB's limit: two names of 255 octets, the most the wire can carry, and the octet between."""

BLOCK = struct.Struct(">QQ")
"""A block's key: partition id, first offset.  Big endian, so that keys sort as offsets do."""

LAST_OFFSET = 2**64 - 1
NEVER_US = -(2**63)

_ROW = struct.Struct("<QQQq")


class Row(NamedTuple):
    """What the log knows of a partition: offsets ``earliest`` to ``end`` (exclusive) are held."""

    id: int
    earliest: int
    end: int
    last_timestamp_us: int

    @classmethod
    def parse(cls, value: memoryview) -> Self:
        """The row that ``packed`` made."""
        return cls._make(_ROW.unpack(value))

    def packed(self) -> bytes:
        """The row as it lies in the table."""
        return _ROW.pack(*self)


def partition_key(topic: str, partition: str) -> bytes:
    """The key of a partition's row.

    Raises:
        ValueError: the names are too long, or not what can be told apart again.
    """
    key = topic_prefix(topic) + _encoded(partition)
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(
            f"the names of topic {topic!r} and partition {partition!r} have {len(key) - 1} octets "
            f"together, a store takes {MAX_KEY_BYTES - 1}"
        )
    return key


def topic_prefix(topic: str) -> bytes:
    """What the keys of a topic's partitions begin with."""
    return _encoded(topic) + b"\0"


def names(key: bytes) -> tuple[str, str]:
    """The topic and the partition of a row's key."""
    topic, _, partition = key.decode("utf-8", "surrogateescape").partition("\0")
    return topic, partition


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
