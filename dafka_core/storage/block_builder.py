"""Making blocks: of values, of a block and more values, of several blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from dafka_core.model.records import times_between
from dafka_core.model.values import Bytes, Longs, Values
from dafka_core.storage.block import (
    ALIGNMENT,
    CHECKED_FROM,
    HEADER,
    LONG,
    MAGIC,
    OFFSET,
    RUN_BYTES,
    VERSION,
    Block,
    aligned,
)

MAX_BLOCK_RECORDS = 65_536
"""A block read is one Arrow batch, and from some ten thousand rows on Spark takes batches at its
full speed; twice as many would only take more memory."""

MAX_BLOCK_BYTES = 16 << 20
"""A read checks whole blocks, so this bounds what reading one record costs, and what a reader has
in hand at a time.  What Spark's worker does once for a batch finds the processor's caches emptied
by the batch before it: with 1-kB values a query takes 3 % less time than with half as many bytes,
and with twice as many no less."""

MAX_RECORD_BYTES = 1 << 30
"""Arrow's offsets are int32, so a value must stay below 2 GiB; this leaves a clear margin."""

_SPARE_BYTES = HEADER.size + RUN_BYTES + 2 * ALIGNMENT
"""What a block of one run costs at most beside the value and the offset of each record."""


class BuiltBlock(NamedTuple):
    """Values ``start`` to ``stop`` (exclusive) of those given, packed.

    ``extends`` says whether the block begins with the records of the block it was to extend.
    """

    start: int
    stop: int
    extends: bool
    packed: memoryview


class _Part(NamedTuple):
    """Values to become part of a block, as a ``Block`` has them: ``offsets`` may begin above 0."""

    times: Longs
    offsets: npt.NDArray[np.integer]
    data: Bytes


def build_blocks(
    values: Sequence[bytes],
    times: Longs,
    extend: Block | None = None,
    into: bytearray | None = None,
) -> Iterator[BuiltBlock]:
    """The values as blocks of at most ``MAX_BLOCK_BYTES`` and ``MAX_BLOCK_RECORDS``, in order.

    ``times`` are their timestamps.

    As few blocks as that takes, of about one size, so that no small one is left over.  A value
    that is too large has a block of its own.  The first block begins with the records of
    ``extend``, when one is given and they fit.

    Each block that fits is made in ``into``, and valid until the next one is asked for then: memory
    in use is much quicker than new memory.

    Raises:
        ValueError: no value, or one above ``MAX_RECORD_BYTES``; before anything is packed.
    """
    ends, data = _checked_columns(values)
    costs = ends + OFFSET.itemsize * np.arange(len(ends))
    if len(times) > 1:  # ``_SPARE_BYTES`` has the first one
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
        packed = _assembled([part] if extend is None else [extend, part], into)
        yield BuiltBlock(start, stop, extend is not None, packed)
        start, extend = stop, None


def pack(values: Values, times: Longs) -> memoryview:
    """Part of a block's records, and their times, as a block."""
    ends, data = values.columns()
    return _assembled([_Part(times, ends, data[int(ends[0]) : int(ends[-1])])], None)


def merge(blocks: Sequence[Block], into: bytearray | None = None) -> memoryview:
    """The records of all blocks as one block, in ``into`` when it has room there.

    Raises:
        ValueError: no block, or a result above ``MAX_BLOCK_BYTES`` or ``MAX_BLOCK_RECORDS``.
    """
    if not blocks:
        raise ValueError("there is no block to merge")
    size_bytes = sum(block.size_bytes for block in blocks)
    count = sum(block.count for block in blocks)
    if len(blocks) > 1 and (size_bytes > MAX_BLOCK_BYTES or count > MAX_BLOCK_RECORDS):
        limits = f"{MAX_BLOCK_BYTES} bytes or {MAX_BLOCK_RECORDS} records"
        raise ValueError(f"{len(blocks)} blocks exceed {limits} together")
    return _assembled(blocks, into)


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


def _assembled(parts: Sequence[Block | _Part], into: bytearray | None) -> memoryview:
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
    HEADER.pack_into(packed, 0, MAGIC, VERSION, 0, 0, count, len(pairs))
    checksum = xxhash.xxh3_64_intdigest(packed[CHECKED_FROM:])
    HEADER.pack_into(packed, 0, MAGIC, VERSION, 0, checksum, count, len(pairs))
    return packed


def _joined(runs: Longs) -> Longs:
    first = np.flatnonzero(np.append(True, runs[1:, 1] != runs[:-1, 1]))
    if len(first) == len(runs):
        return runs
    return np.column_stack((np.add.reduceat(runs[:, 0], first), runs[first, 1]))
