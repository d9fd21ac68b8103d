"""Records as columns of Arrow batches, and the batches' metadata.

The metadata of a batch are signed 64-bit numbers in little endian order: 1 (the version), the
offset of the batch's first record, and, if times were requested, pairs (record count, microseconds
since the epoch UTC): the timestamps of the records, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
LONG: Final = np.dtype("<i8")


def schema_of(names: Sequence[str]) -> pa.Schema:
    """Return the schema of batches with these columns, in this order."""
    return pa.schema([pa.field(name, TYPES[name], nullable=False) for name in names])


def batch_of(batches: Sequence[Records], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema`` for batches of any partitions, concatenated.

    If times are among the columns, the batches must have them.
    """
    arrays = [_column(name, batches) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def packed_metadata(offset: int, times: Longs | None) -> bytes:
    """Encode the metadata of a batch."""
    head = np.array((_VERSION, offset), LONG).tobytes()
    return head if times is None else head + times.astype(LONG).tobytes()


def parse_longs(metadata: pa.Buffer | None, version: int) -> Longs:
    """Decode metadata, which are pairs of numbers; raise ValueError if they are not."""
    size = 0 if metadata is None else len(metadata)
    if metadata is None or not size or size % (2 * LONG.itemsize):
        raise ValueError(f"a batch's metadata have {size} bytes, not pairs of numbers")
    numbers: Longs = np.frombuffer(metadata, LONG)
    if numbers[0] != version:
        raise ValueError(f"a batch's metadata are of version {numbers[0]}, not {version}")
    return numbers


def parse_metadata(
    metadata: pa.Buffer | None, count: int, *, times: bool
) -> tuple[int, Longs | None]:
    """Decode offset and times of ``count`` records; raise ValueError if they are invalid."""
    numbers = parse_longs(metadata, _VERSION)
    offset = int(numbers[1])
    if not times:
        return offset, None
    runs = numbers[2:].reshape(-1, 2)
    if runs[:, 0].min(initial=1) < 1 or int(runs[:, 0].sum()) != count:
        raise ValueError("a batch's times are not those of its records")
    return offset, runs


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
