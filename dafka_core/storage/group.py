"""One group: small blocks of many partitions, packed as one value.

    header      magic, format version, checksum of what follows up to the blocks, number of blocks,
                bytes of the whole group
    directory   partition id, first offset, records, bytes and checksum of each block, in this order
    blocks      as ``block.py`` has them, each at a multiple of 8 bytes

Blocks of trickling records are of one size, so another group's page in the place of one of these
would hold whole blocks.  The directory knows its blocks by their checksums.

Everything is little endian.  Pure: no database, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from dafka_core.storage.block import ALIGNMENT, aligned, peek_checksum
from dafka_core.values import Bytes

MAGIC = b"DafG"
VERSION = 1
HEADER = struct.Struct("<4sHHQII")
CHECKED_FROM = 16
DIRECTORY = np.dtype(
    [("id", "<u8"), ("first", "<u8"), ("records", "<u4"), ("size", "<u4"), ("checksum", "<u8")]
)


class GroupedBlock(NamedTuple):
    """A block of a group: whose it is, its first offset, its records, and the block itself."""

    partition_id: int
    first: int
    records: int
    packed: Bytes

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.first + self.records


def pack_group(blocks: Sequence[GroupedBlock]) -> bytearray:
    """The blocks as one value; they must ascend by partition and offset."""
    sizes = [len(block.packed) for block in blocks]
    rows = [(*block[:3], len(block.packed), peek_checksum(block.packed)) for block in blocks]
    directory = np.array(rows, DIRECTORY).tobytes()
    at = HEADER.size + len(directory)
    packed = bytearray(at + sum(map(aligned, sizes)))
    packed[HEADER.size : at] = directory
    for block, size in zip(blocks, sizes, strict=True):
        packed[at : at + size] = block.packed
        at += aligned(size)
    HEADER.pack_into(packed, 0, MAGIC, VERSION, 0, 0, len(blocks), len(packed))
    checksum = xxhash.xxh3_64_intdigest(memoryview(packed)[CHECKED_FROM : _blocks_at(len(blocks))])
    HEADER.pack_into(packed, 0, MAGIC, VERSION, 0, checksum, len(blocks), len(packed))
    return packed


class Group:
    """A group over the buffer it was parsed from; nothing is copied.

    What is in its blocks is not checked, only that each is the one that was packed.

    Raises:
        ValueError: the buffer does not hold a group; from methods, a block is another one.
    """

    __slots__ = ("_blocks_at", "_buffer", "_directory")

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = view = memoryview(buffer)
        if len(view) < HEADER.size:
            raise ValueError(f"{len(view)} bytes are too few for a group")
        magic, version, unused, checksum, count, size_bytes = HEADER.unpack_from(view)
        if magic != MAGIC or unused != 0:
            raise ValueError("it does not begin as a group does")
        if version != VERSION:
            raise ValueError(f"it is of format {version}, this program reads format {VERSION}")
        blocks_at = self._blocks_at = _blocks_at(count)
        if size_bytes != len(view) or blocks_at > size_bytes:
            raise ValueError(f"it has {len(view)} bytes, not {size_bytes}")
        if checksum != xxhash.xxh3_64_intdigest(view[CHECKED_FROM:blocks_at]):
            raise ValueError("the checksum of its directory is not that of its content")
        self._directory = np.frombuffer(view, DIRECTORY, count, HEADER.size)

    def of_partition(self, partition_id: int) -> list[GroupedBlock]:
        """A partition's blocks."""
        ids, wanted = self._directory["id"], np.uint64(partition_id)
        start = int(ids.searchsorted(wanted))
        if start == len(ids) or ids[start] != wanted:
            return []
        return list(self._blocks(start, int(ids.searchsorted(wanted, side="right"))))

    def __iter__(self) -> Iterator[GroupedBlock]:
        return self._blocks(0, len(self._directory))

    def _blocks(self, row: int, stop: int) -> Iterator[GroupedBlock]:
        before = self._directory["size"][:row].astype(np.int64)
        start = self._blocks_at + int((-(-before // ALIGNMENT)).sum()) * ALIGNMENT
        for partition_id, first, count, size, checksum in self._directory[row:stop].tolist():
            packed = self._buffer[start : start + size]
            if peek_checksum(packed) != checksum:
                raise ValueError(
                    f"in the place of a block of partition id {partition_id} is another one"
                )
            yield GroupedBlock(partition_id, first, count, packed)
            start += aligned(size)


def _blocks_at(count: int) -> int:
    return HEADER.size + count * DIRECTORY.itemsize
