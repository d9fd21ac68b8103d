"""Records as the mesh brings them, in runs of any length, made columns of the size of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dafka_core.flight.columns import RecordColumns
from dafka_core.records import RecordBatch, Values

UNKNOWN_US: Final = -(2**63)
"""The time of a record of which no store knows when it was written."""


@dataclass(slots=True)
class Chunk:
    """Consecutive records that make one batch: their values in pieces, as they came."""

    offset: int
    pieces: list[Values] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offset + self.rows

    def add(self, piece: Values, size_bytes: int) -> None:
        """Appends what comes next."""
        self.pieces.append(piece)
        self.rows += len(piece)
        self.size_bytes += size_bytes


def joined(
    runs: Iterator[RecordBatch],
    written: Sequence[tuple[int, int]] | None,
    max_records: int,
    max_bytes: int,
) -> Iterator[RecordColumns]:
    """The records of runs as columns.

    ``written`` says when: pairs (first offset, microseconds since the epoch UTC), ascending; a
    time holds up to the next pair's offset.  None when the times are of no interest.
    """
    for chunk in chunks(runs, max_records, max_bytes):
        values = pa.concat_arrays([piece.to_arrow() for piece in chunk.pieces])
        times = None if written is None else times_of(written, chunk.offset, chunk.end)
        yield RecordColumns(chunk.offset, values, times)


def chunks(runs: Iterator[RecordBatch], max_records: int, max_bytes: int) -> Iterator[Chunk]:
    """The same records in pieces of the right size for a batch: joined, or cut.

    None has more than ``max_records`` values, nor more than ``max_bytes`` bytes of them unless it
    is a single one.
    """
    held = Chunk(0)
    for run in runs:
        ends, _ = run.values.columns()
        at = 0
        while at < len(run.values):
            if held.rows and held.end != run.offset + at:
                yield held
                held = Chunk(0)
            if not held.rows:
                held = Chunk(run.offset + at)
            limit = int(ends[at]) + max_bytes - held.size_bytes
            fitting = int(np.searchsorted(ends, limit, side="right")) - 1 - at
            take = min(max_records - held.rows, fitting)
            if take <= 0 and held.rows:
                yield held
                held = Chunk(0)
                continue
            stop = at + max(take, 1)
            held.add(run.values[at:stop], int(ends[stop] - ends[at]))
            at = stop
    if held.rows:
        yield held


def times_of(written: Sequence[tuple[int, int]], offset: int, end: int) -> npt.NDArray[np.int64]:
    """When the records ``[offset, end)`` were written, as runs (record count, microseconds)."""
    table = np.array([(0, UNKNOWN_US), *written], dtype=np.int64)
    first = int(np.searchsorted(table[:, 0], offset, side="right")) - 1
    stop = int(np.searchsorted(table[:, 0], end, side="left"))
    bounds = np.concatenate(([offset], table[first + 1 : stop, 0], [end]))
    runs = np.column_stack((np.diff(bounds), table[first:stop, 1]))
    return runs[runs[:, 0] > 0]
