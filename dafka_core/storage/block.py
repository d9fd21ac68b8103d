"""One block: many consecutive records of one partition, laid out as Arrow wants them.

    header      magic, format version, checksum, record count, number of timestamp runs
    runs        (record count, microseconds since the epoch UTC) as int64 pairs: when the
                records were published, run-length encoded
    offsets     count + 1 int32: where each value begins in the data, and where the last one ends
    data        the values, one after the other

Everything is little endian, and each part begins at a multiple of 8 bytes.  The checksum
(xxh3, 64 bits) covers all that follows it; what precedes it is compared with constants.  So a
block read is the block written, or is refused.

Here blocks are read; ``block_builder.py`` makes them.  Both are pure: no database, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import xxhash

from dafka_core.values import Bytes, Longs, Values

MAGIC = b"DafB"
VERSION = 1
HEADER = struct.Struct("<4sHHQII")
CHECKED_FROM = 16
ALIGNMENT = 8
"""Of each part of a block; Arrow and numpy read aligned numbers in place."""

PIECE_BYTES = 256 << 10
"""What is copied at a time, and then hashed: it stays in a core's own cache between the two."""

OFFSET = np.dtype("<i4")
LONG = np.dtype("<i8")
RUN_BYTES = 2 * LONG.itemsize


def aligned(size_bytes: int) -> int:
    """The next multiple of ``ALIGNMENT``."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def peek_count(packed: Bytes) -> int:
    """How many records a packed block says it has; its checksum is not looked at.

    Raises:
        ValueError: it cannot be a block.
    """
    return _header(memoryview(packed))[1]


def peek_checksum(packed: Bytes) -> int:
    """The checksum that a packed block says it has, which is not compared with its content.

    Raises:
        ValueError: it cannot be a block.
    """
    return _header(memoryview(packed))[0]


def peek_times(packed: Bytes) -> Longs:
    """The ``times`` of a packed block; its checksum is not looked at.

    Raises:
        ValueError: it cannot be a block.
    """
    view = memoryview(packed)
    _, count, run_count = _header(view)
    return _times(view, count, run_count)


def _header(view: memoryview) -> tuple[int, int, int]:
    """A block's checksum, its records and its timestamp runs, as its header says."""
    if len(view) < HEADER.size:
        raise ValueError(f"{len(view)} bytes are too few for a block")
    magic, version, unused, checksum, count, run_count = HEADER.unpack_from(view)
    if magic != MAGIC or unused != 0:
        raise ValueError("it does not begin as a block does")
    if version != VERSION:
        raise ValueError(f"it is of format {version}, this program reads format {VERSION}")
    return checksum, count, run_count


def _times(view: memoryview, count: int, run_count: int) -> Longs:
    """A block's runs of timestamps, which tell of ``count`` records, and each of some."""
    if run_count and HEADER.size + run_count * RUN_BYTES <= len(view):
        runs = np.frombuffer(view, LONG, 2 * run_count, HEADER.size).reshape(-1, 2)
        if run_count == 1:  # most blocks have one, and this is done for each block that is read
            fits = int(runs[0, 0]) == count
        else:
            counts = runs[:, 0]
            fits = bool(counts.min() > 0 and counts.sum() == count)
        if fits:
            return runs
    raise ValueError("its timestamps are not those of its records")


class Block:
    """A block over the buffer it was parsed from; nothing is copied.

    Attributes:
        count: how many records it has.
        offsets: where each value begins in ``data``, and where the last one ends.
        times: pairs (record count, microseconds since the epoch UTC), of shape (n, 2).
    """

    __slots__ = ("_buffer", "_data_at", "count", "offsets", "times")

    def __init__(
        self, buffer: memoryview, times: Longs, offsets: npt.NDArray[np.int32], data_at: int
    ) -> None:
        self.count = len(offsets) - 1
        self._buffer = buffer
        self.times = times
        self.offsets = offsets
        self._data_at = data_at

    @classmethod
    def parse(cls, buffer: Bytes) -> Block:
        """The block in ``buffer``, which must hold it exactly.

        Raises:
            ValueError: with a sentence that says what is wrong with it.
        """
        view = memoryview(buffer)
        return cls._checked(view, xxhash.xxh3_64_intdigest(view[CHECKED_FROM:]))

    @classmethod
    def copied(cls, buffer: Bytes) -> Block:
        """The same over memory of its own: nothing refers to ``buffer`` afterwards.

        It is copied and checked in one pass, so what is read from the map is read once.

        Raises:
            ValueError: see ``parse``.
        """
        if len(buffer) <= PIECE_BYTES:
            return cls.parse(bytes(buffer))
        source = np.frombuffer(buffer, np.uint8)

        def copy(piece: memoryview, at: int) -> None:
            # By numpy, which lets other threads run meanwhile.
            np.copyto(np.frombuffer(piece, np.uint8), source[at : at + len(piece)])

        return cls.read(np.empty_like(source).data, copy)

    @classmethod
    def read(cls, buffer: Bytes, read_into: Callable[[memoryview, int], None]) -> Block:
        """The block that ``read_into`` puts into a writable ``buffer``, in pieces.

        ``read_into`` is given a piece of the buffer and where that begins.  Each piece is checked
        while it is in the processor's cache.

        Raises:
            ValueError: see ``parse``.
        """
        view = memoryview(buffer).cast("B")
        checksum = xxhash.xxh3_64()
        for at in range(0, len(view), PIECE_BYTES):
            piece = view[at : at + PIECE_BYTES]
            read_into(piece, at)
            checksum.update(piece if at else piece[CHECKED_FROM:])
        return cls._checked(view.toreadonly(), checksum.intdigest())

    @classmethod
    def _checked(cls, view: memoryview, found: int) -> Block:
        checksum, count, run_count = _header(view)
        if found != checksum:
            raise ValueError("its checksum is not that of its content")
        offsets_at = HEADER.size + run_count * RUN_BYTES
        data_at = aligned(offsets_at + (count + 1) * OFFSET.itemsize)
        if count == 0 or data_at > len(view):
            raise ValueError(f"{len(view)} bytes cannot hold {count} records")
        times = _times(view, count, run_count)
        offsets = np.frombuffer(view, OFFSET, count + 1, offsets_at)
        # With one record, what is compared below says it.
        ascending = count == 1 or bool((offsets[1:] >= offsets[:-1]).all())
        if offsets[0] != 0 or offsets[-1] != len(view) - data_at or not ascending:
            raise ValueError("its offsets do not fit its data")
        return cls(view, times, offsets, data_at)

    @property
    def head(self) -> bytes:
        """How the whole block begins: no other block of the log does."""
        return bytes(self._buffer[: HEADER.size])

    @property
    def size_bytes(self) -> int:
        """What the block takes."""
        return len(self._buffer)

    @property
    def data(self) -> memoryview:
        """The values, one after the other, without a copy."""
        return self._buffer[self._data_at :]

    @property
    def values(self) -> Values:
        """The values, over the same buffer."""
        return Values.from_columns(self.offsets, self.data)
