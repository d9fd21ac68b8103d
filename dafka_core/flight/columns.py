"""Records as columns of Arrow batches, and the batches' metadata.

A batch has records of one range of a get or of several.  Its metadata are signed 64-bit numbers in
little endian order: 1 (the version); the number of the batch's parts; of each part the number of
its range in the ticket, from 0 on, the start and end (exclusive) of the offsets that it covers, its
number of records, and its number of pairs of times; then those pairs, (record count, microseconds
since the epoch UTC), if requested.  Without a condition a part has all records that it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dafka_core.model.names import escape
from dafka_core.model.records import Records
from dafka_core.model.values import Longs, Values

VALUE, OFFSET, TIMESTAMP, TOPIC, PARTITION = "value", "offset", "timestamp", "topic", "partition"
DEFAULT_COLUMNS: Final = (VALUE, OFFSET, TIMESTAMP)

TYPES: Final = {
    VALUE: pa.binary(),
    OFFSET: pa.int64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TOPIC: pa.utf8(),
    PARTITION: pa.utf8(),
}
COLUMNS: Final = tuple(TYPES)

VALUES_SCHEMA: Final = pa.schema([pa.field(VALUE, TYPES[VALUE], nullable=False)])
"""Of puts, and of our own client's requests."""

_VERSION: Final = 1
_HEAD, _PART, _RUN = 2, 5, 2  # numbers of each
_LONG: Final = np.dtype("<i8")


class Part(NamedTuple):
    """Records of the range with this number in a ticket, counted from 0."""

    number: int
    records: Records


def schema_of(names: Sequence[str]) -> pa.Schema:
    """Return the schema of batches with these columns, in this order."""
    return pa.schema([pa.field(name, TYPES[name], nullable=False) for name in names])


def batch_of(batches: Sequence[Records], schema: pa.Schema) -> pa.RecordBatch:
    """Return batches' columns of ``schema``, concatenated; for its times, all must have them."""
    arrays = [_column(name, batches) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def packed_parts(parts: Sequence[Part], *, times: bool) -> bytes:
    """Encode the metadata of a batch with these parts."""
    numbers, runs = [_VERSION, len(parts)], []
    for number, found in parts:
        known = found.times if times else None
        numbers += number, found.offset, found.end, found.count
        numbers.append(0 if known is None else len(known))
        if known is not None:
            runs.append(known.astype(_LONG).tobytes())
    return b"".join((np.array(numbers, _LONG).tobytes(), *runs))


def parse_parts(
    metadata: pa.Buffer | None, count: int, *, times: bool
) -> list[tuple[int, int, int, int, Longs | None]]:
    """Decode the parts of a batch of ``count`` records; raise ValueError if they are invalid.

    Each is the number of the range, start, end, number of records, and their times.
    """
    size = 0 if metadata is None else len(metadata)
    if metadata is None or size < _HEAD * _LONG.itemsize or size % _LONG.itemsize:
        raise ValueError(f"a batch's metadata have {size} bytes, which is no list of numbers")
    numbers: Longs = np.frombuffer(metadata, _LONG)
    version, length = numbers[:_HEAD].tolist()
    if version != _VERSION:
        raise ValueError(f"a batch's metadata are of version {version}, not {_VERSION}")
    stop = _HEAD + _PART * length
    if not 0 < length <= len(numbers) or stop > len(numbers) or (len(numbers) - stop) % _RUN:
        raise ValueError(f"a batch's metadata have no room for {length} parts")
    runs, ends = numbers[stop:].reshape(-1, _RUN), np.zeros(1, np.int64)
    if len(runs):
        # A sum of huge numbers could overflow to the right one.
        if runs[:, 0].min() < 1 or runs[:, 0].max() > count:
            raise ValueError("a batch's times are not those of its records")
        ends = np.append(ends, runs[:, 0].cumsum())
    parts: list[tuple[int, int, int, int, Longs | None]] = []
    records = first = 0
    for number, start, end, matched, pairs in numbers[_HEAD:stop].reshape(-1, _PART).tolist():
        last = first + pairs
        if matched < 0 or not 0 <= pairs <= len(runs) - first:
            raise ValueError("a batch's parts are not its records")
        if int(ends[last] - ends[first]) != (matched if times else 0):
            raise ValueError("a batch's times are not those of its parts")
        parts.append((number, start, end, matched, runs[first:last] if times else None))
        records, first = records + matched, last
    if records != count or first != len(runs):
        raise ValueError("a batch's parts are not its records")
    return parts


def _column(name: str, batches: Sequence[Records]) -> pa.Array:
    if name == VALUE:
        return Values.concat([batch.values for batch in batches]).to_arrow()
    if name == OFFSET:
        return pa.array(np.concatenate([batch.offsets for batch in batches]))
    if name == TIMESTAMP:
        runs = np.concatenate([batch.times for batch in batches if batch.times is not None])
        return pa.array(np.repeat(runs[:, 1], runs[:, 0])).view(TYPES[TIMESTAMP])
    texts = [escape(batch.tp.topic if name == TOPIC else batch.tp.partition) for batch in batches]
    counts = [batch.count for batch in batches]
    return pa.array(texts, TYPES[name]).take(pa.array(np.repeat(np.arange(len(texts)), counts)))
