"""The times of records that the mesh brings: stores are asked for them apart from the records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from dafka_core.records import RecordBatch
from dafka_core.values import Longs

UNKNOWN_US: Final = -(2**63)
"""The time of a record of which no store knows when it was written."""


def with_times(
    batches: Iterable[RecordBatch], written: Sequence[tuple[int, int]]
) -> Iterator[RecordBatch]:
    """The same batches, each with its times.

    ``written`` are pairs (first offset, microseconds since the epoch UTC), ascending; a time holds
    up to the next pair's offset.
    """
    for batch in batches:
        yield replace(batch, times=times_of(written, batch.offset, batch.end))


def times_of(written: Sequence[tuple[int, int]], offset: int, end: int) -> Longs:
    """When the records ``[offset, end)`` were written, as runs (record count, microseconds)."""
    table = np.array([(0, UNKNOWN_US), *written], dtype=np.int64)
    first = int(np.searchsorted(table[:, 0], offset, side="right")) - 1
    stop = int(np.searchsorted(table[:, 0], end, side="left"))
    bounds = np.concatenate(([offset], table[first + 1 : stop, 0], [end]))
    runs = np.column_stack((np.diff(bounds), table[first:stop, 1]))
    return runs[runs[:, 0] > 0]
