"""Records as columns: what is made of the log's blocks, and what a batch's metadata says.

The metadata of a batch are signed 64-bit numbers in little endian order: 1 (the version), the
offset of the batch's first record, and, where times were asked for, pairs (record count,
microseconds since the epoch UTC): when the store wrote that many records of the batch, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dafka_core.errors import ConfigError
from dafka_core.flight.limits import JOINED_BYTES, JOINED_RECORDS
from dafka_core.flight.request_members import OFFSET, PARTITION, TIMESTAMP, TOPIC, VALUE
from dafka_core.records import Values
from dafka_core.storage.block import Chunk

Longs = npt.NDArray[np.int64]

TYPES: Final = {
    VALUE: pa.binary(),
    OFFSET: pa.int64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TOPIC: pa.utf8(),
    PARTITION: pa.utf8(),
}
VALUES_SCHEMA: Final = pa.schema([pa.field(VALUE, TYPES[VALUE], nullable=False)])
"""Of what is put, and of what our own client asks for."""

_VERSION: Final = 1
_LONG: Final = np.dtype("<i8")
_OFFSETS: Final = np.dtype("<i4")


class RecordColumns(NamedTuple):
    """Consecutive records of one partition as columns.

    Attributes:
        offset: of the first record.
        values: an Arrow array of binary without nulls.
        times: runs of shape (n, 2), (record count, microseconds since the epoch UTC) when the
            store wrote the records; None if not asked for.
    """

    offset: int
    values: pa.BinaryArray
    times: Longs | None

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offset + len(self.values)


def groups(chunks: Iterable[Chunk], max_records: int, max_bytes: int) -> Iterator[list[Chunk]]:
    """The same chunks: large ones each alone, small ones with the small ones that follow them.

    Together small ones have at most ``max_records`` and ``max_bytes`` of values.
    """
    held: list[Chunk] = []
    records = size_bytes = 0
    for chunk in chunks:
        count, size = chunk.block.count, len(chunk.block.data)
        small = count < JOINED_RECORDS and size < JOINED_BYTES
        if held and not (
            small and records + count <= max_records and size_bytes + size <= max_bytes
        ):
            yield held
            held, records, size_bytes = [], 0, 0
        held.append(chunk)
        records, size_bytes = records + count, size_bytes + size
        if not small:
            yield held
            held, records, size_bytes = [], 0, 0
    if held:
        yield held


def joined(group: Sequence[Chunk], *, times: bool) -> RecordColumns:
    """A group as columns; a chunk that is alone is not copied."""
    if len(group) > 1:
        return copied(group, times=times)
    (chunk,) = group
    runs = chunk.block.timestamp_runs if times else None
    return RecordColumns(chunk.offset, chunk.values, runs)


def copied(group: Sequence[Chunk], *, times: bool) -> RecordColumns:
    """A group as columns that refer to nothing of the log."""
    count = sum(chunk.block.count for chunk in group)
    data = pa.allocate_buffer(sum(len(chunk.block.data) for chunk in group))
    ends = pa.allocate_buffer((count + 1) * _OFFSETS.itemsize)
    data_view, ends_view = memoryview(data).cast("B"), np.frombuffer(ends, _OFFSETS)
    ends_view[0] = at = row = 0
    for chunk in group:
        part, offsets = chunk.block.data, chunk.block.offsets
        stop = row + chunk.block.count
        data_view[at : at + len(part)] = part
        np.subtract(offsets[1:], offsets[0] - at, out=ends_view[row + 1 : stop + 1])
        at, row = at + len(part), stop
    values = pa.Array.from_buffers(TYPES[VALUE], count, [None, ends, data], null_count=0)
    runs = np.concatenate([chunk.block.timestamp_runs for chunk in group]) if times else None
    return RecordColumns(group[0].offset, values, runs)


def cut(columns: RecordColumns, max_records: int, max_bytes: int) -> Iterator[RecordColumns]:
    """The same records in parts over the same buffers.

    A part has at most ``max_records``, and at most ``max_bytes`` of values unless it is one
    record.
    """
    offset, values, times = columns
    ends = offsets_of(values)
    count = len(values)
    if count <= max_records and int(ends[-1]) - int(ends[0]) <= max_bytes:
        yield columns
        return
    start = 0
    while start < count:
        fitting = int(ends.searchsorted(int(ends[start]) + max_bytes, side="right")) - 1
        stop = max(min(fitting, start + max_records, count), start + 1)
        runs = None if times is None else runs_between(times, start, stop)
        yield RecordColumns(offset + start, values[start:stop], runs)
        start = stop


def offsets_of(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where the values begin in their buffer, and where the last one ends."""
    _, offsets, _ = values.buffers()
    if offsets is None or len(values) == 0:
        return np.zeros(1, _OFFSETS)
    at = values.offset * _OFFSETS.itemsize
    return np.frombuffer(offsets, _OFFSETS, len(values) + 1, at)


def run_values(values: pa.BinaryArray) -> Values:
    """The values as a run has them; the buffer with them is not copied."""
    ends = offsets_of(values)
    _, _, data = values.buffers()
    # Arrow's buffers are of signed bytes, which nothing else takes for bytes.
    view = memoryview(b"" if data is None else data).cast("B")
    return Values.from_columns(ends, view[int(ends[0]) : int(ends[-1])])


def runs_between(runs: Longs, start: int, stop: int) -> Longs:
    """The runs of records ``start`` to ``stop`` (exclusive) of those that the runs tell of."""
    ends = runs[:, 0].cumsum()
    counts = np.diff(ends.clip(start, stop), prepend=start)
    return np.column_stack((counts, runs[:, 1]))[counts > 0]


def schema_of(names: Sequence[str]) -> pa.Schema:
    """The schema of batches with these columns, in this order."""
    return pa.schema([pa.field(name, TYPES[name], nullable=False) for name in names])


def batch_of(
    columns: RecordColumns, schema: pa.Schema, topic: str, partition: str
) -> pa.RecordBatch:
    """The columns that ``schema`` names.  ``columns`` must have times if they are among them."""
    arrays = [_column(name, columns, topic, partition) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_text(name: str, text: str) -> None:
    """Raises ConfigError unless a column of texts can hold the name."""
    try:
        text.encode()
    except UnicodeEncodeError:
        why = f"the {name}'s name is not UTF-8, as a column must be; leave {name} out"
        raise ConfigError("columns", name, why) from None


def packed_metadata(offset: int, times: Longs | None) -> bytes:
    """The metadata of a batch; see the module."""
    head = np.array((_VERSION, offset), _LONG).tobytes()
    return head if times is None else head + times.astype(_LONG).tobytes()


def parse_metadata(
    metadata: pa.Buffer | None, count: int, *, times: bool
) -> tuple[int, Longs | None]:
    """Offset and times of a batch of ``count`` records from its metadata.

    Raises:
        ValueError: with a sentence that says what is wrong with them.
    """
    size = 0 if metadata is None else len(metadata)
    if metadata is None or size < 2 * _LONG.itemsize or size % (2 * _LONG.itemsize):
        raise ValueError(f"a batch's metadata have {size} bytes, not pairs of numbers")
    numbers = np.frombuffer(metadata, _LONG)
    if numbers[0] != _VERSION:
        raise ValueError(f"a batch's metadata are of version {numbers[0]}, not {_VERSION}")
    offset = int(numbers[1])
    if not times:
        return offset, None
    runs = numbers[2:].reshape(-1, 2)
    if runs[:, 0].min(initial=1) < 1 or int(runs[:, 0].sum()) != count:
        raise ValueError("a batch's times are not those of its records")
    return offset, runs


def _column(name: str, columns: RecordColumns, topic: str, partition: str) -> pa.Array:
    count = len(columns.values)
    if name == VALUE:
        return columns.values
    if name == OFFSET:
        return pa.array(np.arange(columns.offset, columns.end, dtype=np.int64))
    if name == TIMESTAMP:
        assert columns.times is not None
        stamps = np.repeat(columns.times[:, 1], columns.times[:, 0])
        return pa.array(stamps).view(TYPES[TIMESTAMP])
    return pa.repeat(pa.scalar(topic if name == TOPIC else partition, TYPES[name]), count)
