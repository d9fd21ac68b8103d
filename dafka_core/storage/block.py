"""One block: consecutive records of one partition in Arrow's layout, its codecs, and a cache.

    header      magic, format version, codec, checksum, record count, number of timestamp runs,
                the greatest timestamp of these and all earlier records of the partition
    runs        (record count, microseconds since the epoch UTC) as int64 pairs: the records'
                timestamps, run-length encoded
    offsets     count + 1 int32: the position in the data where each value begins, and the end
    data        the concatenated values

In version 4, written when blocks are cold, offsets and data are compressed together, preceded by
their uncompressed size (uint64).

Everything is little endian, and each part begins at a multiple of 8 bytes.  The checksum (xxh3, 64
bits) covers everything after it; the part before it is compared with constants.  So a block read is
the block written, or is refused.  The checksum of a compressed block covers its bytes on disk, and
is compared before decompression.

Pure: no database, no clock.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from dafka_core.model.records import times_between
from dafka_core.model.values import Bytes, Longs, Values

# The codecs of blocks, by the number in a block's header.
#
# Arrow provides them, and is loaded on demand: a store without compression and Flight starts
# without it.

PLAIN: Final = 0
NUMBERS: Final = {"zstd": 1, "lz4": 2}
_ARROW: Final = {1: "zstd", 2: "lz4_raw"}

MAX_BODY_BYTES: Final = (1 << 30) + (1 << 20)
"""The largest uncompressed block: the largest record has one of its own."""


def compress(number: int, body: Bytes) -> memoryview:
    """Compress bytes."""
    import pyarrow as pa  # noqa: PLC0415

    made = pa.Codec(_ARROW[number]).compress(pa.py_buffer(body))
    return memoryview(made).cast("B")[: made.size]  # the buffer is longer


def decompress(number: int, body: Bytes, size_bytes: int) -> memoryview:
    """Decompress to ``size_bytes`` bytes; raise ValueError if they are not of a known codec."""
    if number not in _ARROW:
        raise ValueError(f"it is compressed by codec {number}, which this program does not know")
    if not 0 < size_bytes <= MAX_BODY_BYTES:
        raise ValueError(f"it cannot open to {size_bytes} bytes")
    import pyarrow as pa  # noqa: PLC0415

    try:
        opened = pa.Codec(_ARROW[number]).decompress(pa.py_buffer(body), size_bytes)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it cannot be decompressed ({error})") from error
    return memoryview(opened).cast("B")[:size_bytes]


MAGIC = b"DafB"
VERSION = 3
COMPRESSED = 4
"""The version of compressed blocks."""

HEADER = struct.Struct("<4sHHQIIq")
OPENS_TO = struct.Struct("<Q")
CHECKED_FROM = 16
ALIGNMENT = 8
"""Of each part of a block; Arrow and numpy read aligned numbers in place."""

PIECE_BYTES = 256 << 10
"""Bytes copied at a time, and then hashed: they stay in a core's own cache between the two."""

WORTH_SHARE = 0.9  # a block stays uncompressed if compression saves less: decompression costs time

OFFSET = np.dtype("<i4")
LONG = np.dtype("<i8")
RUN_BYTES = 2 * LONG.itemsize


def aligned(size_bytes: int) -> int:
    """Return the next multiple of ``ALIGNMENT``."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def peek_times(packed: Bytes) -> Longs:
    """Return the ``times`` of a packed block, without checking its checksum; as ``header_of``."""
    view = memoryview(packed)
    return _times(view, header_of(view))


def plain_size(packed: Bytes) -> int:
    """Return a packed block's uncompressed size; if it is invalid, its present size."""
    view = memoryview(packed)
    try:
        head = header_of(view)
        if head.codec:
            return head.body_at + int(OPENS_TO.unpack_from(view, head.body_at)[0])
    except (ValueError, struct.error):
        pass
    return len(view)


class Header(NamedTuple):
    """The fields of a block's header."""

    codec: int
    checksum: int
    records: int
    run_count: int
    newest_us: int

    @property
    def body_at(self) -> int:
        """Return the position of what follows the timestamps."""
        return HEADER.size + self.run_count * RUN_BYTES


def header_of(packed: Bytes) -> Header:
    """Return a packed block's header, unchecked; raise ValueError if it cannot be a block."""
    view = memoryview(packed)
    if len(view) < HEADER.size:
        raise ValueError(f"{len(view)} bytes are too few for a block")
    magic, version, *fields = HEADER.unpack_from(view)
    head = Header._make(fields)
    if magic != MAGIC:
        raise ValueError("it does not begin as a block does")
    if version not in (VERSION, COMPRESSED):
        raise ValueError(
            f"it is of format {version}, this program reads formats {VERSION} and {COMPRESSED}"
        )
    if (version == VERSION) != (head.codec == PLAIN):
        raise ValueError("it does not begin as a block does")
    return head


def _times(view: memoryview, head: Header) -> Longs:
    """Return a block's runs of timestamps, which add up to its records."""
    if head.run_count and head.body_at <= len(view):
        runs = np.frombuffer(view, LONG, 2 * head.run_count, HEADER.size).reshape(-1, 2)
        if head.run_count == 1:  # the most frequent case, for each block that is read
            fits = int(runs[0, 0]) == head.records
        else:
            counts = runs[:, 0]
            fits = bool(counts.min() > 0 and counts.sum() == head.records)
        if fits:
            return runs
    raise ValueError("its timestamps are not those of its records")


class Block:
    """A block over the buffer it was parsed from; nothing is copied unless it is compressed."""

    __slots__ = ("codec", "count", "data", "head", "newest_us", "offsets", "size_bytes", "times")

    def __init__(self, view: memoryview, checksum: int) -> None:
        head = header_of(view)
        if checksum != head.checksum:
            raise ValueError("its checksum is not that of its content")
        body = view[head.body_at :]
        if head.codec and len(body) >= OPENS_TO.size:
            (size_bytes,) = OPENS_TO.unpack_from(body)
            body = decompress(head.codec, body[OPENS_TO.size :], size_bytes)
        self.count = head.records  # the number of records
        data_at = aligned((self.count + 1) * OFFSET.itemsize)
        if self.count == 0 or data_at > len(body):
            raise ValueError(f"{len(view)} bytes cannot hold {self.count} records")
        self.codec = head.codec  # the number of its codec on disk; 0 if uncompressed
        # The greatest timestamp of these and all earlier records of the partition.
        self.newest_us = head.newest_us
        self.head = bytes(view[: HEADER.size])  # its first bytes on disk, unique in the log
        self.times = _times(view, head)  # as in ``RecordBatch``
        # The position in ``data`` where each value begins, and the end.
        self.offsets: npt.NDArray[np.int32] = np.frombuffer(body, OFFSET, self.count + 1)
        self.data = body[data_at:]  # the concatenated values
        self.size_bytes = head.body_at + len(body)  # uncompressed
        offsets = self.offsets
        # With one record, the comparison below suffices.
        ascending = self.count == 1 or bool((offsets[1:] >= offsets[:-1]).all())
        if offsets[0] != 0 or offsets[-1] != len(self.data) or not ascending:
            raise ValueError("its offsets do not fit its data")

    @classmethod
    def parse(cls, buffer: Bytes) -> Block:
        """Parse the block in ``buffer``, which has nothing else; raise ValueError at damage."""
        view = memoryview(buffer)
        return cls(view, xxhash.xxh3_64_intdigest(view[CHECKED_FROM:]))

    @classmethod
    def copied(cls, buffer: Bytes) -> Block:
        """Parse a copy of the block, which does not refer to ``buffer``, as ``parse``.

        It is copied and checked in one pass, so the map is read once.
        """
        if len(buffer) <= PIECE_BYTES:
            return cls.parse(bytes(buffer))
        source = np.frombuffer(buffer, np.uint8)

        def copy(piece: memoryview, at: int) -> None:
            # By numpy, which releases the interpreter lock.
            np.copyto(np.frombuffer(piece, np.uint8), source[at : at + len(piece)])

        return cls.read(np.empty_like(source).data, copy)

    @classmethod
    def read(cls, buffer: Bytes, read_into: Callable[[memoryview, int], None]) -> Block:
        """Parse, as ``parse``, a block that ``read_into`` reads in pieces into a ``buffer``.

        ``read_into`` receives a piece of the buffer and its position.  Each piece is checked while
        it is in the processor's cache.
        """
        view = memoryview(buffer).cast("B")
        checksum = xxhash.xxh3_64()
        for at in range(0, len(view), PIECE_BYTES):
            piece = view[at : at + PIECE_BYTES]
            read_into(piece, at)
            checksum.update(piece if at else piece[CHECKED_FROM:])
        return cls(view.toreadonly(), checksum.intdigest())

    @property
    def values(self) -> Values:
        """Return the values, over the same buffer."""
        return Values.from_columns(self.offsets, self.data)


def compressed(packed: Bytes, codec: int) -> memoryview | None:
    """Compress a plain block; return None if that saves hardly anything."""
    view = memoryview(packed)
    head = header_of(view)
    at = head.body_at
    body = compress(codec, view[at:])
    start = at + OPENS_TO.size
    if start + len(body) > WORTH_SHARE * len(view):
        return None
    made = memoryview(bytearray(start + len(body)))
    made[HEADER.size : at] = view[HEADER.size : at]
    OPENS_TO.pack_into(made, at, len(view) - at)
    made[start:] = body
    _seal(made, COMPRESSED, codec, *head[2:])
    return made


def _seal(
    packed: memoryview, version: int, codec: int, count: int, run_count: int, newest_us: int
) -> None:
    """Write the header of a block, with its checksum."""
    checked = count, run_count, newest_us
    HEADER.pack_into(packed, 0, MAGIC, version, codec, 0, *checked)
    checksum = xxhash.xxh3_64_intdigest(packed[CHECKED_FROM:])
    HEADER.pack_into(packed, 0, MAGIC, version, codec, checksum, *checked)


MAX_BLOCK_RECORDS = 65_536
"""A block read is one Arrow batch, and from some ten thousand rows on Spark processes batches at
its full speed; twice as many would only take more memory."""

MAX_BLOCK_BYTES = 16 << 20
"""A read checks whole blocks, so this bounds the cost of reading one record, and a reader's memory.
Work that Spark's worker does once for each batch finds the processor's caches emptied by the batch
before it: with 1-kB values a query takes 3 % less time than with half of this size, and with twice
this size no less."""

MAX_RECORD_BYTES = 1 << 30
"""Arrow's offsets are int32, so a value must stay below 2 GiB; this leaves a clear margin."""

_SPARE_BYTES = HEADER.size + RUN_BYTES + 2 * ALIGNMENT
"""The largest overhead of a block of one run, beside the value and the offset of each record."""


class _Part(NamedTuple):
    """Values for a part of a block, as in ``Block``: ``offsets`` may begin above 0."""

    times: Longs
    offsets: npt.NDArray[np.integer]
    data: Bytes


def build_blocks(
    values: Sequence[bytes],
    times: Longs,
    newest_us: int,
    extend: Block | None = None,
    into: bytearray | None = None,
) -> Iterator[tuple[int, memoryview]]:
    """Pack values into blocks of at most ``MAX_BLOCK_BYTES`` and ``MAX_BLOCK_RECORDS``, in order.

    ``times`` are their timestamps, and ``newest_us`` the greatest timestamp before them.

    Yields the number of each block's first value, and the packed block.  The blocks are as few as
    possible, and similar in size, so that none is small.  A value that is too large has a block of
    its own.  The first block begins with the records of ``extend``, if it is given and they fit:
    its number is below 0 then.

    Each block that fits is packed in ``into``, and valid until the next one is requested: memory in
    use is much faster than new memory.

    Raises ValueError, before anything is packed, for no value, or one above ``MAX_RECORD_BYTES``.
    """
    ends, data = _checked_columns(values)
    costs = ends + OFFSET.itemsize * np.arange(len(ends))
    if len(times) > 1:  # ``_SPARE_BYTES`` includes the first one
        costs[1:] += RUN_BYTES * np.repeat(np.arange(len(times)), times[:, 0])
    start = 0
    while start < len(values):
        stop = _stop(costs, start, extend)
        if stop <= start and extend is not None:
            extend = None
            continue
        stop = max(stop, start + 1)
        part = _Part(
            times_between(times, start, stop),
            ends[start : stop + 1],
            data[int(ends[start]) : int(ends[stop])],
        )
        newest_us = max(newest_us, int(part.times[:, 1].max()))
        packed = _assembled([part] if extend is None else [extend, part], newest_us, into)
        yield start - (extend.count if extend else 0), packed
        start, extend = stop, None


def pack(values: Values, times: Longs, newest_us: int) -> memoryview:
    """Pack records, and their times, as one block."""
    return _assembled([_Part(times, *values.columns())], newest_us, None)


def unreadable(count: int, newest_us: int) -> bytes:
    """Return a block without content, which is found damaged, in the place of lost records."""
    return HEADER.pack(MAGIC, VERSION, PLAIN, 0, count, 1, newest_us)


def merge(blocks: Sequence[Block], into: bytearray | None = None) -> memoryview:
    """Merge blocks, in ``into`` if it has room; raise ValueError for none, or above the limits."""
    if not blocks:
        raise ValueError("there is no block to merge")
    size_bytes = sum(block.size_bytes for block in blocks)
    count = sum(block.count for block in blocks)
    if len(blocks) > 1 and (size_bytes > MAX_BLOCK_BYTES or count > MAX_BLOCK_RECORDS):
        limits = f"{MAX_BLOCK_BYTES} bytes or {MAX_BLOCK_RECORDS} records"
        raise ValueError(f"{len(blocks)} blocks exceed {limits} together")
    return _assembled(blocks, blocks[-1].newest_us, into)


def _stop(costs: npt.NDArray[np.int64], start: int, extend: Block | None) -> int:
    room = MAX_BLOCK_BYTES - _SPARE_BYTES
    size, count = (extend.size_bytes, extend.count) if extend else (0, 0)
    whole_size = size + int(costs[-1] - costs[start])
    whole_count = count + len(costs) - 1 - start
    blocks = max(-(-whole_size // room), -(-whole_count // MAX_BLOCK_RECORDS))
    fair_size = -(-whole_size // blocks) - size
    fair_count = -(-whole_count // blocks) - count
    fair = int(costs.searchsorted(costs[start] + fair_size))
    most = int(costs.searchsorted(costs[start] + room - size, side="right")) - 1
    return min(fair, most, start + fair_count, len(costs) - 1)


def _checked_columns(values: Sequence[bytes]) -> tuple[Longs, memoryview]:
    if len(values) == 0:
        raise ValueError("a block has at least one record")
    ends, data = Values.of(values).columns()
    lengths = np.diff(ends)
    largest = int(lengths.argmax())
    if lengths[largest] > MAX_RECORD_BYTES:
        allowed = f"a record may have {MAX_RECORD_BYTES}"
        raise ValueError(f"value {largest} has {lengths[largest]} bytes, {allowed}")
    return ends, data


def _assembled(
    parts: Sequence[Block | _Part], newest_us: int, into: bytearray | None
) -> memoryview:
    pairs = _joined(np.concatenate([part.times for part in parts]))
    count = int(pairs[:, 0].sum())
    offsets_at = HEADER.size + pairs.nbytes
    table_end = offsets_at + (count + 1) * OFFSET.itemsize
    data_at = aligned(table_end)
    data = [part.data for part in parts]
    size = data_at + sum(map(len, data))
    packed = memoryview(into if into is not None and size <= len(into) else bytearray(size))[:size]
    np.frombuffer(packed, LONG, pairs.size, HEADER.size)[:] = pairs.reshape(-1)
    table = np.frombuffer(packed, OFFSET, count + 1, offsets_at)
    table[0] = row = 0
    packed[table_end:data_at] = bytes(data_at - table_end)
    at = data_at
    for part, values in zip(parts, data, strict=True):
        stop, end = row + len(part.offsets) - 1, at + len(values)
        table[row + 1 : stop + 1] = part.offsets[1:] + (at - data_at - int(part.offsets[0]))
        packed[at:end] = values
        row, at = stop, end
    _seal(packed, VERSION, PLAIN, count, len(pairs), newest_us)
    return packed


def _joined(runs: Longs) -> Longs:
    first = np.flatnonzero(np.append(True, runs[1:, 1] != runs[:-1, 1]))
    if len(first) == len(runs):
        return runs
    return np.column_stack((np.add.reduceat(runs[:, 0], first), runs[first, 1]))


CACHE_BYTES = 4 * MAX_BLOCK_BYTES  # room for a few readers, each inside a block of its own

LEAST_BYTES = 16 << 10
"""A smaller block is read and checked faster than it is found, and takes several times its size: a
reader of very many partitions would fill memory with such."""


class BlockCache:
    """Blocks by key, at most ``CACHE_BYTES`` of them; the least recently used one is dropped first.

    A cached block never becomes wrong: its key has its first bytes on disk, with its checksum.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: bytes) -> Block | None:
        """Return the last block put under the key, if it is still cached."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: bytes, block: Block) -> None:
        """Cache the block, unless it is small, or larger than the whole cache."""
        if not LEAST_BYTES <= block.size_bytes <= CACHE_BYTES:
            return
        with self._lock:
            replaced = self._blocks.pop(key, None)
            if replaced is not None:
                self._size_bytes -= replaced.size_bytes
            self._blocks[key] = block
            self._size_bytes += block.size_bytes
            while self._size_bytes > CACHE_BYTES:
                _, dropped = self._blocks.popitem(last=False)
                self._size_bytes -= dropped.size_bytes
