"""The floor of reading a log's file: map or copy it, and hand it to Spark.

Without a table of blocks or any lookup, pieces of a store's file, as large as its batches, become
values; the other columns are precomputed. A reader can hardly be faster than the mapping variant,
or than the copying and hashing one if it must verify what it returns and keep it unchanged.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import xxhash
from pyspark.sql.datasource import InputPartition

from benchmarks.stub_source import StubReader, prebuilt
from dafka_core.storage.block import PIECE_BYTES


@dataclass(frozen=True)
class Pieces(InputPartition):
    """The pieces of one task."""

    first: int
    stop: int


class FileReader(StubReader):
    """Reads values from the file of option ``file``, with precomputed other columns.

    The file must have the bytes of several batches.  With ``copied`` they are copied and hashed.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._file = Path(options["file"])
        self._copied = "copied" in options

    def partitions(self) -> list[InputPartition]:
        """Divide the pieces into equal parts."""
        count = -(-self._rows // self._shape[0])
        cuts = [count * task // self._tasks for task in range(self._tasks + 1)]
        return [Pieces(*cut) for cut in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a batch for each piece."""
        assert isinstance(partition, Pieces)
        rows, size_bytes, _ = self._shape
        like = prebuilt(rows, size_bytes)[0]
        at = like.schema.get_field_index("value")
        columns = like.columns
        _, ends, _ = columns[at].buffers()
        piece_bytes = rows * size_bytes
        step = -(-piece_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._file.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            whole, piece_count = memoryview(mapped), len(mapped) // step
            for number in range(partition.first, partition.stop):
                start = number % piece_count * step
                data = whole[start : start + piece_bytes]
                if self._copied:
                    data = copied(file.fileno(), start, piece_bytes)
                buffers = [None, ends, pa.py_buffer(data)]
                columns[at] = pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=0)
                yield pa.RecordBatch.from_arrays(columns, schema=like.schema)
                # Release the pages, so that memory does not grow.
                mapped.madvise(mmap.MADV_DONTNEED, start, step)


def copied(fd: int, start: int, size_bytes: int) -> memoryview:
    """Copy and hash a piece, as the real reader does."""
    copy, checksum = memoryview(pa.allocate_buffer(size_bytes)), xxhash.xxh3_64()
    for at in range(0, size_bytes, PIECE_BYTES):
        part = copy[at : at + PIECE_BYTES]
        os.preadv(fd, [part], start + at)
        checksum.update(part)
    return copy
