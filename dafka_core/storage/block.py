"""One block: many consecutive records of one partition, laid out as Arrow wants them.

    header      magic, format version, checksum, record count, number of timestamp runs
    runs        (record count, microseconds since the epoch UTC) as int64 pairs: when the store
                wrote the records, run-length encoded
    offsets     count + 1 int32: where each value begins in the data, and where the last one ends
    data        the values, one after the other

Everything is little endian, and each part begins at a multiple of 8 bytes.  The checksum
(xxh3, 64 bits) covers all that follows it; what precedes it is compared with constants.  So a
block read is the block written, or is refused.

This module is pure: no database, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from dafka_core.records import Values

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BLOCK_BYTES = 16 << 20
"""A read checks whole blocks, so this bounds what reading one record costs; what a block costs
beside its records is forgotten long before."""

MAX_RECORD_BYTES = 1 << 30
"""Arrow's offsets are int32, so a value must stay below 2 GiB; this leaves a clear margin."""

_MAGIC = b"DafB"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQII")
_CHECKED_FROM = 16
_ALIGNMENT = 8
_OFFSET = np.dtype("<i4")
_LONG = np.dtype("<i8")
_RUN_BYTES = 2 * _LONG.itemsize

_SPARE_BYTES = _HEADER.size + _RUN_BYTES + 2 * _ALIGNMENT
"""What a block of one run costs at most beside the value and the offset of each record."""

Bytes = bytes | bytearray | memoryview
Longs = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """Values ``start`` to ``stop`` (exclusive) of those given, packed.

    ``extends`` says whether the block begins with the records of the block it was to extend.
    """

    start: int
    stop: int
    extends: bool
    packed: bytearray


class Block:
    """A block, or a part of one, over the buffer it was parsed from; nothing is copied."""

    __slots__ = ("_buffer", "_data_at", "_offsets", "_runs", "_start", "count")

    def __init__(
        self,
        buffer: memoryview,
        runs: Longs,
        offsets: npt.NDArray[np.int32],
        data_at: int,
        start: int,
        count: int,
    ) -> None:
        self.count = count
        self._buffer = buffer
        self._runs = runs
        self._offsets = offsets
        self._data_at = data_at
        self._start = start

    @classmethod
    def parse(cls, buffer: Bytes) -> Block:
        """The block in ``buffer``, which must hold it exactly.

        Raises:
            ValueError: with a sentence that says what is wrong with it.
        """
        view = memoryview(buffer)
        if len(view) < _HEADER.size:
            raise ValueError(f"{len(view)} bytes are too few for a block")
        magic, version, unused, checksum, count, run_count = _HEADER.unpack_from(view)
        if magic != _MAGIC or unused != 0:
            raise ValueError("it does not begin as a block does")
        if version != _VERSION:
            raise ValueError(f"it is of format {version}, this program reads format {_VERSION}")
        if xxhash.xxh3_64_intdigest(view[_CHECKED_FROM:]) != checksum:
            raise ValueError("its checksum is not that of its content")
        offsets_at = _HEADER.size + run_count * _RUN_BYTES
        data_at = _aligned(offsets_at + (count + 1) * _OFFSET.itemsize)
        if count == 0 or data_at > len(view):
            raise ValueError(f"{len(view)} bytes cannot hold {count} records")
        runs = np.frombuffer(view, _LONG, 2 * run_count, _HEADER.size).reshape(-1, 2)
        offsets = np.frombuffer(view, _OFFSET, count + 1, offsets_at)
        if runs[:, 0].min(initial=1) < 1 or runs[:, 0].sum() != count:
            raise ValueError("its timestamps are not those of its records")
        ascending = bool((offsets[1:] >= offsets[:-1]).all())
        if offsets[0] != 0 or offsets[-1] != len(view) - data_at or not ascending:
            raise ValueError("its offsets do not fit its data")
        return cls(view, runs, offsets, data_at, 0, count)

    @property
    def size_bytes(self) -> int:
        """What these records take as a block of their own."""
        runs = len(self.timestamp_runs) * _RUN_BYTES
        offsets = _aligned((self.count + 1) * _OFFSET.itemsize)
        return _HEADER.size + runs + offsets + len(self.data)

    @property
    def offsets(self) -> npt.NDArray[np.int32]:
        """Where the values begin, and where the last one ends; ``data`` begins at the first."""
        return self._offsets[self._start : self._start + self.count + 1]

    @property
    def data(self) -> memoryview:
        """The values, one after the other, without a copy."""
        offsets = self.offsets
        return self._buffer[self._data_at + int(offsets[0]) : self._data_at + int(offsets[-1])]

    @property
    def values(self) -> pa.BinaryArray:
        """The values as an Arrow array over the buffer, without a copy."""
        # A store that only ingests never needs it, and it loads slowly.
        import pyarrow as pa  # noqa: PLC0415

        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._buffer[self._data_at :])]
        return pa.Array.from_buffers(
            pa.binary(), self.count, buffers, null_count=0, offset=self._start
        )

    @property
    def timestamp_runs(self) -> Longs:
        """Pairs (record count, microseconds since the epoch UTC), as an array of shape (n, 2)."""
        if self.count == len(self._offsets) - 1:
            return self._runs
        ends = self._runs[:, 0].cumsum()
        counts = np.diff(ends.clip(self._start, self._start + self.count), prepend=self._start)
        return np.column_stack((counts, self._runs[:, 1]))[counts > 0]

    def timestamps(self) -> Longs:
        """When each record was written, in microseconds since the epoch UTC."""
        runs = self.timestamp_runs
        return np.repeat(runs[:, 1], runs[:, 0])

    def slice(self, start: int, count: int) -> Block:
        """``count`` records from ``start`` on, over the same buffer.

        Raises:
            ValueError: the block does not have all of them, or ``count`` is not positive.
        """
        if start < 0 or count < 1 or start + count > self.count:
            raise ValueError(f"records {start} to {start + count} of a block of {self.count}")
        return Block(
            self._buffer, self._runs, self._offsets, self._data_at, self._start + start, count
        )

    def values_list(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Values ``start`` to ``stop`` (exclusive; the end when None), copied.

        Raises:
            ValueError: the block does not have all of them.
        """
        stop = self.count if stop is None else stop
        if start == stop:
            return []
        part = self.slice(start, stop - start)
        return Values.from_columns(part.offsets, part.data).to_list()

    def fitting(self, max_bytes: int) -> int:
        """How many records from the first on have at most ``max_bytes`` of values together."""
        offsets = self.offsets
        limit = int(offsets[0]) + max_bytes
        return int(offsets.searchsorted(limit, side="right")) - 1


class Chunk(NamedTuple):
    """Consecutive records of a partition: ``block`` has those from ``offset`` on."""

    offset: int
    block: Block

    @property
    def end(self) -> int:
        """The offset after the last record of the chunk."""
        return self.offset + self.block.count

    @property
    def values(self) -> pa.BinaryArray:
        """The values as an Arrow array, without a copy."""
        return self.block.values

    def values_list(self) -> list[bytes]:
        """The values one by one, copied."""
        return self.block.values_list()

    def run_values(self) -> Values:
        """The values as a run has them, without a copy."""
        return Values.from_columns(self.block.offsets, self.block.data)

    def timestamps(self) -> Longs:
        """When the store wrote each record, in microseconds since the epoch UTC."""
        return self.block.timestamps()


def pack(values: Sequence[bytes], timestamp_us: int) -> bytearray:
    """The values as one block, all written at ``timestamp_us`` (since the epoch UTC).

    Raises:
        ValueError: no value, a value above ``MAX_RECORD_BYTES``, or more than one value and a
            block above ``MAX_BLOCK_BYTES``: use ``pack_pieces``.
    """
    pieces = list(pack_pieces(values, timestamp_us))
    if len(pieces) != 1:
        raise ValueError(
            f"{len(values)} values do not make one block of at most {MAX_BLOCK_BYTES} bytes"
        )
    return pieces[0].packed


def pack_pieces(
    values: Sequence[bytes], timestamp_us: int, extend: Block | None = None
) -> Iterator[Piece]:
    """The values as blocks of at most ``MAX_BLOCK_BYTES``, in order.

    A value that is too large for that has a block of its own.  The first block begins with the
    records of ``extend``, when one is given and they fit.

    Raises:
        ValueError: a value above ``MAX_RECORD_BYTES``; before anything is packed.
    """
    ends, data = _checked_columns(values)
    costs = ends + _OFFSET.itemsize * np.arange(len(ends))
    start = 0
    while start < len(values):
        room = MAX_BLOCK_BYTES - _SPARE_BYTES - (extend.size_bytes if extend else 0)
        stop = int(costs.searchsorted(costs[start] + room, side="right")) - 1
        if stop <= start and extend is not None:
            extend = None
            continue
        stop = max(stop, start + 1)
        run = np.array([[stop - start, timestamp_us]], _LONG)
        offsets = ends[start : stop + 1] - ends[start]
        part = data[int(ends[start]) : int(ends[stop])]
        if extend is None:
            packed = _assembled([run], [offsets], [part])
        else:
            packed = _assembled(
                [extend.timestamp_runs, run],
                [extend.offsets, offsets],
                [extend.data, part],
            )
        yield Piece(start, stop, extend is not None, packed)
        start, extend = stop, None


def merge(blocks: Sequence[Block]) -> bytearray:
    """The records of all blocks as one block.

    Raises:
        ValueError: no block, or a result above ``MAX_BLOCK_BYTES``.
    """
    if not blocks:
        raise ValueError("there is no block to merge")
    if len(blocks) > 1 and sum(block.size_bytes for block in blocks) > MAX_BLOCK_BYTES:
        raise ValueError(f"{len(blocks)} blocks exceed {MAX_BLOCK_BYTES} bytes together")
    return _assembled(
        [block.timestamp_runs for block in blocks],
        [block.offsets for block in blocks],
        [block.data for block in blocks],
    )


def _checked_columns(values: Sequence[bytes]) -> tuple[Longs, memoryview]:
    if len(values) == 0:
        raise ValueError("a block has at least one record")
    ends, data = Values.of(values).columns()
    lengths = np.diff(ends)
    largest = int(lengths.argmax())
    if lengths[largest] > MAX_RECORD_BYTES:
        raise ValueError(
            f"value {largest} has {lengths[largest]} bytes, more than a record may have "
            f"({MAX_RECORD_BYTES})"
        )
    return ends, data


def _assembled(
    runs: Sequence[Longs], offsets: Sequence[npt.NDArray[np.integer]], data: Iterable[Bytes]
) -> bytearray:
    """A block of the given parts; each array of offsets belongs to the next part of the data."""
    pairs = _joined(np.concatenate(runs))
    rebased, base = [np.zeros(1, np.int64)], 0
    for part in offsets:
        rebased.append(part[1:].astype(np.int64) + (base - int(part[0])))
        base = int(rebased[-1][-1])
    table = np.concatenate(rebased).astype(_OFFSET).tobytes()
    table += bytes(_aligned(len(table)) - len(table))
    head = bytes(_HEADER.size)
    # A bytearray, because the checksum goes into the header after the one copy of the data.
    packed = bytearray().join((head, pairs.tobytes(), table, *data))
    count = int(pairs[:, 0].sum())
    _HEADER.pack_into(packed, 0, _MAGIC, _VERSION, 0, 0, count, len(pairs))
    checksum = xxhash.xxh3_64_intdigest(memoryview(packed)[_CHECKED_FROM:])
    _HEADER.pack_into(packed, 0, _MAGIC, _VERSION, 0, checksum, count, len(pairs))
    return packed


def _joined(runs: Longs) -> Longs:
    """The runs with neighbours of one timestamp made one."""
    first = np.flatnonzero(np.append(True, runs[1:, 1] != runs[:-1, 1]))
    if len(first) == len(runs):
        return runs
    return np.column_stack((np.add.reduceat(runs[:, 0], first), runs[first, 1]))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
