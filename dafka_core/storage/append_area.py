"""The append area: groups of small batches, until they are large enough for blocks.

LMDB writes whole pages, and those on the path to them: a small value for each of many partitions
costs a page each.  So the small batches of an append become one value, a group (``group.py``), in
the table ``meta``:

    "group ", level, bucket, number  ->  group
    "trim of ", partition id         ->  offset below which it is trimmed, checksum

An append writes its group at level 0.  When those are many or large, the next append sorts them
into the buckets of level 1, each of 64 partitions with adjacent ids.  ``FAN_IN`` groups of one
bucket are merged into the narrower buckets of the next level, and from the last level into the
table ``blocks``.  Each time, adjacent blocks of a partition become one block.  A block that is not
small any more moves to that table at once; so does one that another block follows there, since it
cannot grow.

So a record is written once for each level, one bucket at a time exists twice, and groups have
similar sizes, so that the pages of a deleted one have room for another.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import xxhash

from dafka_core.model.values import Bytes, Longs
from dafka_core.storage.block import ALIGNMENT, Block, aligned, header_of, merge
from dafka_core.storage.rows import BLOCK_KEY, LAST_OFFSET, OffsetTable, Table

# One group: small blocks of many partitions, packed as one value.
#
#  header      magic, format version, checksum of the rest up to the blocks, number of blocks,
#                 bytes of the whole group
#  directory   partition id, first offset, records, bytes and checksum of each block, in this order
#     blocks      as in ``block.py``, each at a multiple of 8 bytes
#
# Trickling records make blocks of one size, so another group's page in the place of one of these
# would contain whole blocks.  The directory identifies its blocks by their checksums.
#
# Everything is little endian.  Pure: no database, no clock.

MAGIC = b"DafG"
VERSION = 1
HEADER = struct.Struct("<4sHHQII")
CHECKED_FROM = 16
DIRECTORY = np.dtype(
    [("id", "<u8"), ("first", "<u8"), ("records", "<u4"), ("size", "<u4"), ("checksum", "<u8")]
)

_Directory = np.ndarray[tuple[int], np.dtype[np.void]]  # rows of ``DIRECTORY``


class GroupedBlock(NamedTuple):
    """A block of a group: its partition, first offset, records, and the packed block."""

    partition_id: int
    first: int
    records: int
    packed: Bytes

    @property
    def end(self) -> int:
        """Return the offset after its last record."""
        return self.first + self.records


def pack_group(blocks: Sequence[GroupedBlock]) -> bytearray:
    """Pack blocks, ascending by partition and offset, as one value."""
    rows = [(*block[:3], len(block.packed), header_of(block.packed).checksum) for block in blocks]
    return _packed(np.array(rows, DIRECTORY), [block.packed for block in blocks])


def _packed(directory: _Directory, blocks: Iterable[Bytes]) -> bytearray:
    at = _blocks_at(len(directory))
    packed = bytearray(at + sum(map(aligned, directory["size"].tolist())))
    packed[HEADER.size : at] = directory.tobytes()
    for block in blocks:
        packed[at : at + len(block)] = block
        at += aligned(len(block))
    HEADER.pack_into(packed, 0, MAGIC, VERSION, 0, 0, len(directory), len(packed))
    checked = memoryview(packed)[CHECKED_FROM : _blocks_at(len(directory))]
    checksum = xxhash.xxh3_64_intdigest(checked)
    HEADER.pack_into(packed, 0, MAGIC, VERSION, 0, checksum, len(directory), len(packed))
    return packed


class Group:
    """A group over the buffer it was parsed from, without copies.

    The contents of its blocks are not checked, only that each is the packed one.  Raises ValueError
    if the buffer is not a group, and from methods if a block does not match its directory.
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
        """Return a partition's blocks."""
        ids, wanted = self._directory["id"], np.uint64(partition_id)
        start = int(ids.searchsorted(wanted))
        if start == len(ids) or ids[start] != wanted:
            return []
        return list(self._blocks(start, int(ids.searchsorted(wanted, side="right"))))

    def __iter__(self) -> Iterator[GroupedBlock]:
        return self._blocks(0, len(self._directory))

    def intact(self) -> Iterator[GroupedBlock]:
        """Yield the blocks that match the directory."""
        for row in range(len(self._directory)):
            with contextlib.suppress(ValueError):
                yield from self._blocks(row, row + 1)

    def without(self, partition_id: int, start: int, end: int) -> bytes | None:
        """Return the group without a partition's blocks that end after ``start``, up to ``end``.

        None if it has none, and nothing if it has no others.  Others, also damaged ones, stay as
        they are.
        """
        ends = self._directory["first"] + self._directory["records"]
        bounds = (ends > np.uint64(start)) & (ends <= np.uint64(end))
        stays = ~(bounds & (self._directory["id"] == np.uint64(partition_id)))
        if stays.all():
            return None
        left = self._directory[stays]
        starts = self._starts(0, len(stays))[stays]
        places = zip(starts.tolist(), left["size"].tolist(), strict=True)
        blocks = [self._buffer[at : at + size] for at, size in places]
        return bytes(_packed(left, blocks)) if blocks else b""

    def _blocks(self, row: int, stop: int) -> Iterator[GroupedBlock]:
        rows, starts = self._directory[row:stop].tolist(), self._starts(row, stop).tolist()
        for (partition_id, first, records, size, found), at in zip(rows, starts, strict=True):
            packed = self._buffer[at : at + size]
            if header_of(packed).checksum != found:
                raise ValueError(
                    f"in the place of a block of partition id {partition_id} is another one"
                )
            yield GroupedBlock(partition_id, first, records, packed)

    def _starts(self, row: int, stop: int) -> Longs:
        """Return the positions of some blocks."""
        sizes = (self._directory["size"][:stop].astype(np.int64) + ALIGNMENT - 1) & -ALIGNMENT
        starts: Longs = self._blocks_at + sizes.cumsum()[row:] - sizes[row:]
        return starts


def _blocks_at(count: int) -> int:
    return HEADER.size + count * DIRECTORY.itemsize


MOVED_BYTES = 64 << 10  # a block of this size justifies its own place and a partly filled last page
APPENDED_GROUPS = 32  # a reader may have to search each one for a record

APPENDED_BYTES = 3 << 19
"""More would be sorted in larger parts and written less often; but sorted data exists twice, and
the file never shrinks."""

FAN_IN = 8
"""A record is written again once a group or a block has become this many times as large.  More
would leave more of them to search, less would write records more often."""

MERGED_GROUPS = 2 * FAN_IN
"""Groups merged at a time if more have accumulated: one may have 5 MB, and appends wait meanwhile.
"""

WIDTHS = (2**64, 64, 8)
"""The number of ids in a bucket of each level.  A merged bucket has ``FAN_IN`` times as much of
each partition as before, so the next level's has as many fewer partitions.  Part of the directory's
format: readers find a partition's groups by it."""

_APPENDED = (0, 0)
_GROUP = b"group "
_GROUP_KEY = struct.Struct(">6sBQQ")

Bucket = tuple[int, int]  # a level, and its partitions' ids divided by the level's width
Mergeable = list[tuple[int, int, int]]
"""Partition id, first offset and size of blocks that may be merged from now on."""


class AppendArea:
    """The area in the tables ``meta`` and ``blocks`` of one transaction of LMDB.

    It adds blocks that it moves to the table of blocks to ``mergeable``.  ``due`` are the buckets
    that received a group in this transaction and have enough to be merged.
    """

    def __init__(self, meta: Table, blocks: Table, mergeable: Mergeable) -> None:
        self._meta = meta
        self._blocks = blocks
        self._mergeable = mergeable
        self._trims = OffsetTable(meta, b"trim of ")
        self._pending: dict[int, list[GroupedBlock]] = {}
        self.due: set[Bucket] = set()

    # -- reading ---------------------------------------------------------------------------------

    def find(self, partition_id: int, offset: int) -> list[GroupedBlock]:
        """Return the block with a record and those after it; empty if the area has none.

        Raises ValueError if a group that may have it is damaged, and no other one has it.
        """
        found: list[GroupedBlock] = []
        blocks, damage = self._blocks_of(partition_id)
        for block in blocks:
            if block.first <= offset < block.end:
                found.append(block)
                offset = block.end
        if damage is not None and not found:
            raise damage
        return found

    def of_partition(self, partition_id: int) -> list[GroupedBlock]:
        """Return a partition's blocks, by offset; raise ValueError if a group of it is damaged."""
        blocks, damage = self._blocks_of(partition_id)
        if damage is not None:
            raise damage
        return blocks

    def readable(self, partition_id: int) -> list[GroupedBlock]:
        """Return a partition's blocks, by offset, without those of damaged groups."""
        return self._blocks_of(partition_id)[0]

    def damaged(self, partition_id: int) -> list[tuple[bytes, range]]:
        """Return the keys of damaged groups of a partition's buckets, and the ids of these."""
        found = []
        for key, value in self._groups_of(partition_id):
            try:
                _ = [*Group(value)]
            except ValueError:
                _, level, bucket, _ = _GROUP_KEY.unpack(key)
                width = WIDTHS[level]
                found.append((key, range(bucket * width, (bucket + 1) * width)))
        return found

    # -- writing ---------------------------------------------------------------------------------

    def append(self, block: GroupedBlock) -> None:
        """Add a small block after all records of its partition; ``flush`` writes it."""
        self._pending.setdefault(block.partition_id, []).append(block)

    def flush(self) -> None:
        """Write the added blocks as one group; sort groups into buckets if large enough."""
        if not self._pending:
            return
        pending = [block for _, blocks in sorted(self._pending.items()) for block in blocks]
        self._pending.clear()
        waiting = list(self._slots(_APPENDED))
        size_bytes = sum(len(block.packed) for block in pending)
        size_bytes += sum(len(value) for _, value in waiting)
        if len(waiting) + 1 < APPENDED_GROUPS and size_bytes < APPENDED_BYTES:
            self._put(_APPENDED, pack_group(pending))
            return
        keys, blocks = self._taken(waiting, len(waiting))
        self._replace(_APPENDED, keys, [*blocks, *pending])

    def merge(self, bucket: Bucket) -> None:
        """Merge the groups of a bucket into those of the next level, if they are many enough."""
        keys, blocks = self._taken(self._slots(bucket), MERGED_GROUPS)
        if len(keys) >= FAN_IN:
            self._replace(bucket, keys, blocks)
        if len(keys) == MERGED_GROUPS:
            self.due.add(bucket)

    def trim(self, partition_id: int, before: int) -> None:
        """Note that a partition's records below ``before`` need not be written again."""
        self._trims.put(partition_id, before)

    def cut(self, partition_id: int, start: int, end: int = LAST_OFFSET) -> None:
        """Remove a partition's blocks with records from ``start`` to ``end``; there are copies.

        Other partitions' blocks in the same groups may be damaged; a group with a damaged directory
        stays: nothing reads it.
        """
        for block in self._pending.pop(partition_id, ()):
            if not start < block.end <= end:
                self.append(block)
        # Copied: each put changes pages.
        for key, value in [(key, bytes(value)) for key, value in self._groups_of(partition_id)]:
            with contextlib.suppress(ValueError):
                left = Group(value).without(partition_id, start, end)
                if left is not None:
                    self._meta.put(key, left)

    def rewrite(self, keys: Iterable[bytes]) -> None:
        """Write damaged groups again, without damaged blocks, whose records are elsewhere."""
        for key in keys:
            intact: list[GroupedBlock] = []
            with contextlib.suppress(ValueError):
                intact += Group(bytes(self._meta.get(key) or b"")).intact()
            self._meta.put(key, bytes(pack_group(intact)) if intact else b"")

    def _replace(self, bucket: Bucket, keys: list[bytes], blocks: list[GroupedBlock]) -> None:
        merged, level, kept = self._merged(blocks), bucket[0] + 1, False
        for key, value in reversed(list(self._slots(bucket))):
            if value and key not in keys:
                kept = True
            elif kept:
                self._meta.put(key, b"")
            else:
                self._meta.delete(key)
        if level == len(WIDTHS):
            for block in merged:
                self._move(block)
            return
        for number, each in groupby(merged, lambda block: block.partition_id // WIDTHS[level]):
            self._put((level, number), pack_group(list(each)))

    def _merged(self, blocks: list[GroupedBlock]) -> list[GroupedBlock]:
        """Merge adjacent blocks, without those that were trimmed or moved."""
        blocks.sort(key=attrgetter("partition_id", "first"))
        left: list[GroupedBlock] = []
        for partition_id, of_partition in groupby(blocks, attrgetter("partition_id")):
            earliest = self._trims.get(partition_id)  # 0 if damaged: merged blocks may be deleted
            held = (block for block in of_partition if block.end > earliest)
            for stretch in _stretches(held):
                for block in _joined(stretch):
                    after = BLOCK_KEY.pack(partition_id, block.end)
                    is_followed = self._blocks.cursor().set_key(after)
                    if is_followed or len(block.packed) >= MOVED_BYTES:
                        self._move(block)
                    else:
                        left.append(block)
        return left

    def _move(self, block: GroupedBlock) -> None:
        partition_id, first, _, packed = block
        self._blocks.put(BLOCK_KEY.pack(partition_id, first), packed)
        self._mergeable.append((partition_id, first, len(packed)))

    # -- keys and values -------------------------------------------------------------------------

    def _blocks_of(self, partition_id: int) -> tuple[list[GroupedBlock], ValueError | None]:
        """Return a partition's blocks, by offset, and an error if more of them may be missing."""
        found, damage = [*self._pending.get(partition_id, ())], None
        for key, value in self._groups_of(partition_id):
            try:
                found += Group(value).of_partition(partition_id)
            except ValueError as error:
                _, level, bucket, at = _GROUP_KEY.unpack(key)
                where = f"group {at} of small batches, level {level}, bucket {bucket}"
                damage = ValueError(f"{where}, is damaged: {error}")
        return sorted(found, key=attrgetter("first")), damage

    def _groups_of(self, partition_id: int) -> Iterator[tuple[bytes, memoryview]]:
        """Yield keys and groups of the buckets that may have blocks of a partition."""
        for level, width in enumerate(WIDTHS):
            for key, value in self._slots((level, partition_id // width)):
                if value:
                    yield key, value

    def _taken(
        self, values: Iterable[tuple[bytes, memoryview]], most: int
    ) -> tuple[list[bytes], list[GroupedBlock]]:
        """Copy the keys and blocks of the first groups: pages are about to change.

        A damaged group stays in its place, for readers to report it: appends continue.
        """
        keys: list[bytes] = []
        blocks: list[GroupedBlock] = []
        for key, value in values:
            with contextlib.suppress(ValueError):
                blocks += list(Group(bytes(value)))
                keys.append(key)
            if len(keys) == most:
                break
        return keys, blocks

    def _put(self, bucket: Bucket, packed: bytearray) -> None:
        taken = [len(value) > 0 for _, value in self._slots(bucket)]
        number = [*taken, False].index(False)
        self._meta.put(_GROUP_KEY.pack(_GROUP, *bucket, number), packed)
        if bucket != _APPENDED and sum(taken) + 1 >= FAN_IN:
            self.due.add(bucket)

    def _slots(self, bucket: Bucket) -> Iterator[tuple[bytes, memoryview]]:
        """Return keys and groups of a bucket; an empty group where one was removed before another.

        Each is read by its key: in a damaged tree LMDB ends the process in ``next``.
        """
        for number in count():
            key = _GROUP_KEY.pack(_GROUP, *bucket, number)
            value = self._meta.get(key)
            if value is None:
                return
            yield key, value


def _stretches(blocks: Iterable[GroupedBlock]) -> Iterator[list[GroupedBlock]]:
    stretch: list[GroupedBlock] = []
    size_bytes = 0
    for block in blocks:
        if stretch and (stretch[-1].end != block.first or size_bytes >= MOVED_BYTES):
            yield stretch
            stretch, size_bytes = [], 0
        stretch.append(block)
        size_bytes += len(block.packed)
    if stretch:
        yield stretch


def _joined(stretch: list[GroupedBlock]) -> list[GroupedBlock]:
    """Merge adjacent blocks; unchanged if one is damaged, which a reader then reports."""
    if len(stretch) == 1:
        return stretch
    try:
        packed = merge([Block.parse(block.packed) for block in stretch])
    except ValueError:
        return stretch
    records = sum(block.records for block in stretch)
    return [GroupedBlock(stretch[0].partition_id, stretch[0].first, records, packed)]
