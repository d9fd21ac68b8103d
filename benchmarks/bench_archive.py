"""Row 16: a log's records to an archive and back, beside the same columns as plain Parquet.

The reference writes an Arrow table in memory with pyarrow, with the same compression and row
groups, and syncs the file; and it reads the archive's file as a table.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure
from benchmarks.harness import TOPIC, Bench
from dafka_core.archive import archive
from dafka_core.archive.archive import (
    COMPRESSION,
    GROUP_BYTES,
    GROUP_RECORDS,
    ArchiveWriter,
    Wanted,
    columns_of,
)
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import Log

FULL_RECORDS: Final = 2_000_000
APPEND: Final = 50_000
TP: Final = TopicPartition(TOPIC, "A" * 32)


def run(bench: Bench) -> Iterator[Figure]:
    """Measure writing and reading."""
    records = bench.part(FULL_RECORDS)
    with TemporaryDirectory(dir=bench.directory) as path, Log(Path(path) / "log") as log:
        fill(log, records)
        directory = Path(path) / "archive"
        table = pa.Table.from_batches([columns_of(each) for each in taken(log, 0, records)])
        size_mb = table.column("value").nbytes / 1e6
        compare = partial(bench.compare, unit="MB/s", goal=0.7, warm_ups=1)
        yield compare(
            "archive: writing",
            lambda: size_mb / archived(log, directory, records),
            lambda: size_mb / plain(table),
        )
        archived(log, directory, records)
        yield compare(
            "archive: reading",
            lambda: size_mb / read(directory, records),
            lambda: size_mb / plain_read(directory),
        )


def fill(log: Log, records: int) -> None:
    """Return records of about 100 bytes, as JSON."""
    for start in range(0, records, APPEND):
        numbers = range(start, min(start + APPEND, records))
        lines = [
            b'{"id": %d, "name": "name-%d", "price": %.2f, "at": {"x": %d}, "tags": ["a", "b"]}'
            % (number, number % 997, number * 1.37 % 1000, number * 7919 % 100_003)
            for number in numbers
        ]
        log.append([RecordBatch(TP, start, Values.of(lines))])


def taken(log: Log, start: int, end: int) -> Iterator[RecordBatch]:
    """Return records as a store archives them."""
    while start < end:
        found = log.read(TP, start, end, max_records=GROUP_RECORDS, max_bytes=GROUP_BYTES)
        yield from found
        start = found[-1].end


def archived(log: Log, directory: Path, records: int) -> float:
    """Return the seconds to write a new archive to disk."""
    shutil.rmtree(directory, ignore_errors=True)
    started_s = time.perf_counter()
    added = ArchiveWriter(directory, TOPIC).archive(
        [Wanted(TP, 0, records)], lambda each: taken(log, each.start, each.end)
    )
    assert sum(file.end - file.start for file in added.files) == records
    return time.perf_counter() - started_s


def plain(table: pa.Table) -> float:
    """Return the seconds to write a file alone."""
    with TemporaryDirectory() as path:
        started_s = time.perf_counter()
        with (Path(path) / "x.parquet").open("wb") as file:
            pq.write_table(
                table,
                file,
                compression=COMPRESSION,
                compression_level=1,
                row_group_size=GROUP_RECORDS,
            )
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - started_s


def read(directory: Path, records: int) -> float:
    """Return the seconds to read all records as from a log."""
    started_s = time.perf_counter()
    files = archive.Archive(directory).held()[TP]
    count = sum(each.count for each in archive.read(directory, TP, files, 0, records))
    assert count == records
    return time.perf_counter() - started_s


def plain_read(directory: Path) -> float:
    """Return the seconds to read all columns."""
    started_s = time.perf_counter()
    for path in sorted(directory.rglob("*.parquet")):
        pq.ParquetFile(path).read(use_threads=False)
    return time.perf_counter() - started_s
