"""What a task is given in the order of some columns: the rows of each value, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

Key = tuple[Any, ...]


def grouped(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[Key, Iterator[pa.RecordBatch]]]:
    """Each value of the columns with its rows, which are to be taken before the next one is."""
    pieces = (piece for batch in batches for piece in _pieces(batch, columns))
    for key, found in groupby(pieces, itemgetter(0)):
        yield key, (rows for _, rows in found)


def _pieces(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    start = 0
    keys = zip(*(batch[name].to_pylist() for name in columns), strict=True)
    for key, rows in groupby(keys):
        count = sum(1 for _ in rows)
        yield key, batch.slice(start, count)
        start += count
