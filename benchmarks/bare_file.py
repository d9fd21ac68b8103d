"""The least that reading a log's file costs: it is mapped or copied, and given to Spark.

There is no table of blocks, and nothing is looked for or fetched: pieces of a store's file, as
large as its batches, become values; the other columns were made before.  A reader of the file can
hardly do better than the one that maps it, nor than the one that copies and hashes each piece, if
it checks what it hands out, and what it has handed out must stay as it was.
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
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.stub_source import StubReader, StubSource, prebuilt
from dafka_core.storage.block import PIECE_BYTES

FORM = "bench-file"


@dataclass(frozen=True)
class Pieces(InputPartition):
    """What one task reads: pieces of the file, by number."""

    first: int
    stop: int


class FileSource(StubSource):
    """Options: those of the stub source, ``file``, and ``copied`` or not.

    The file must have several batches' bytes.
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return FORM

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        return FileReader(self.options)


class FileReader(StubReader):
    """Takes the values from the file and the other columns from what was made before."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._file = Path(options["file"])
        self._copied = options.get("copied") == "true"

    def partitions(self) -> list[InputPartition]:
        """The pieces in equal parts."""
        count = -(-self._rows // self._shape[0])
        cuts = [count * task // self._tasks for task in range(self._tasks + 1)]
        return [Pieces(*cut) for cut in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A batch for each piece."""
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
                # So that memory does not grow with what was read.
                mapped.madvise(mmap.MADV_DONTNEED, start, step)


def copied(fd: int, start: int, size_bytes: int) -> memoryview:
    """A piece in memory of its own, hashed as it is copied, as our reader does."""
    copy, checksum = memoryview(pa.allocate_buffer(size_bytes)), xxhash.xxh3_64()
    for at in range(0, size_bytes, PIECE_BYTES):
        part = copy[at : at + PIECE_BYTES]
        os.preadv(fd, [part], start + at)
        checksum.update(part)
    return copy
