"""Rows on their way to a store, made into blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from dafka_core.storage.block_builder import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS

BLOCK_ROWS: Final = MAX_BLOCK_RECORDS
BLOCK_BYTES: Final = MAX_BLOCK_BYTES // 2
"""From when on rows are put: half of what a store has in a block at most, so that it makes one
block of them, which it need not merge, even where a batch of Spark's goes far beyond."""


class RowBuffer:
    """Collects values until they are worth sending."""

    def __init__(self) -> None:
        self._row_count = 0
        self._pieces: list[pa.Array] = []
        self._size_bytes = 0

    def add(self, values: pa.Array) -> Iterator[pa.Array]:
        """Takes binary or string values without nulls; gives each block that is full."""
        at = 0
        while at < len(values):
            part = values.slice(at, BLOCK_ROWS - self._row_count)
            self._pieces.append(part)
            self._row_count += len(part)
            self._size_bytes += part.nbytes
            at += len(part)
            if self._row_count >= BLOCK_ROWS or self._size_bytes >= BLOCK_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.Array]:
        """What waits, as a block, if there is something."""
        if self._pieces:
            binary = [piece.cast(pa.binary()) for piece in self._pieces]
            self._pieces, self._row_count, self._size_bytes = [], 0, 0
            yield binary[0] if len(binary) == 1 else pa.concat_arrays(binary)
