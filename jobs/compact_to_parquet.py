r"""Keep topics as Parquet files, one for each topic and day (UTC), every record exactly once.

    dafka job compact_to_parquet --topic flights --output DIR --checkpoint DIR --available-now

A record belongs to the day of its timestamp, whenever the job reads it.  Any Parquet reader can
read the files at any time; they have the columns of an archive's files (docs/retention.md).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core.archive.archive import SCHEMA
from dafka_core.archive.manifest import ArchiveError, day_name, reading, topic_name, translated
from dafka_core.model.names import unescape
from dafka_core.system.files import make_directory, move
from dafka_spark.job_support import (
    JobParser,
    Key,
    add_option,
    add_query_arguments,
    add_topic_arguments,
    build_session,
    check_options,
    duration_ms,
    for_each_group,
    read_topics,
    run_job,
    run_query,
)

# Independent of the session's time zone.
_DAY = "date_from_unix_date(cast(floor(unix_micros(timestamp) / 86400000000) as int))"

NAME: Final = "records.parquet"
_TEMPORARY: Final = ".records-{}.tmp"
_ENDS: Final = b"dafka.ends"
_KNOWN: Final = ["partition", "offset", "timestamp"]

ROW_GROUP_RECORDS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 64 << 20
"""Two row groups are in memory at a time."""


class DayFile:
    """The Parquet file of one topic and day, open for one task; other tasks and processes wait.

    A new file replaces the old one atomically: a reader sees one of them.  The file contains the
    end offset of its records for each partition (``_ENDS``), so records that are added again are
    recognized: by a retried task, by a query that repeats a batch after a crash, or by a query with
    another checkpoint.
    """

    def __init__(self, directory: Path, topic: str, day: str | None) -> None:
        self._directory = directory
        self._day = directory / topic_name(directory, topic) / day_name(day)
        self._path = self._day / NAME
        self._temporary = self._day / _TEMPORARY.format(uuid.uuid4().hex)
        self._lock = -1
        self._ends: dict[str, int] = {}
        self._known: list[pa.Table] = []
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._count = 0

    def __enter__(self) -> Self:
        with translated(self._directory):
            make_directory(self._day)
            self._lock = os.open(self._day, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with translated(self._directory):
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                for left in self._day.glob(_TEMPORARY.format("*")):  # of killed tasks
                    left.unlink()
            self._ends = self._read_ends()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.is_open = False  # else it would write its footer, and the disk may be full
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        os.close(self._lock)

    def add(self, records: pa.RecordBatch) -> None:
        """Add records; those of each partition are in the order of their offsets.

        Raises:
            ArchiveError: the disk fails, or the file is damaged.
        """
        table = pa.Table.from_batches([records]).select(SCHEMA.names).cast(SCHEMA)
        names = table["partition"].combine_chunks().dictionary_encode()
        ends = pa.array([self._ends.get(name, 0) for name in names.dictionary.to_pylist()])
        is_new = pc.greater_equal(table["offset"], ends.take(names.indices))
        self._known.append(table.filter(pc.invert(is_new)).select(_KNOWN))
        new = table.filter(is_new)
        if not new.num_rows:
            return
        if self._writer is None:
            self._begin()
        self._write(new)
        self._count += new.num_rows
        last = new.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        self._ends |= {each["partition"]: each["offset_max"] + 1 for each in last}

    def finish(self) -> int:
        """Write the added records to the file; return the number of new ones.

        Raises:
            ArchiveError: the disk fails, or the file has other records at the same offsets.
        """
        self._check_known()
        if self._writer is None:
            return 0
        with translated(self._directory):
            self._flush()
            self._writer.add_key_value_metadata({_ENDS.decode(): json.dumps(self._ends)})
            self._writer.close()
            move((self._temporary, self._path))
        self._writer = None
        return self._count

    def _read_ends(self) -> dict[str, int]:
        try:
            with reading(self._directory, self._path), pq.ParquetFile(self._path) as file:
                told = (file.schema_arrow.metadata or {}) | (file.metadata.metadata or {})
        except FileNotFoundError:
            return {}
        if _ENDS not in told:
            why = f"{self._path} was not written by this job: use another directory"
            raise ArchiveError(self._directory, why)
        return dict(json.loads(told[_ENDS]))

    def _begin(self) -> None:
        with translated(self._directory):
            self._writer = pq.ParquetWriter(
                self._temporary, SCHEMA, compression="zstd", write_page_checksum=True
            )
        with (
            contextlib.suppress(FileNotFoundError),
            reading(self._directory, self._path),
            pq.ParquetFile(self._path, page_checksum_verification=True) as old,
        ):
            for batch in old.iter_batches(8_192):
                self._write(pa.Table.from_batches([batch]).cast(SCHEMA))

    def _write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        rows = sum(each.num_rows for each in self._waiting)
        if rows >= ROW_GROUP_RECORDS or sum(e.nbytes for e in self._waiting) >= ROW_GROUP_BYTES:
            with translated(self._directory):
                self._flush()

    def _flush(self) -> None:
        assert self._writer is not None
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), ROW_GROUP_RECORDS)
        self._waiting = []

    def _check_known(self) -> None:
        """Check that the file has the same records: the topic may have been created again."""
        known = pa.concat_tables(self._known) if self._known else SCHEMA.empty_table()
        if not known.num_rows:
            return
        with reading(self._directory, self._path):
            there = pq.read_table(self._path, columns=_KNOWN, partitioning=None)
        other = _comparable(known).join(_comparable(there), _KNOWN, join_type="left anti")
        if other.num_rows:
            partition, offset = other["partition"][0].as_py(), other["offset"][0].as_py()
            why = (
                f"{self._path} has other records than partition {partition}, from offset {offset} "
                "on: the topic was created again, or the file starts at a later offset. Use "
                "another directory and another checkpoint"
            )
            raise ArchiveError(self._directory, why)


def _comparable(table: pa.Table) -> pa.Table:
    times = table["timestamp"].cast(pa.int64()).fill_null(-(1 << 63))
    return table.select(_KNOWN).set_column(2, "timestamp", times)


def merge_into(output: str) -> Callable[[DataFrame, int], None]:
    """Return the function for each micro-batch: one task adds new records to a day's file."""

    def add(key: Key, found: Iterator[pa.RecordBatch]) -> None:
        topic, day = key
        with DayFile(Path(output), unescape(topic), day and day.isoformat()) as file:
            for records in found:
                file.add(records)
            file.finish()

    def merge(records: DataFrame, batch: int) -> None:
        days = records.select(sf.expr(_DAY).alias("day"), "topic", *SCHEMA.names)
        for_each_group(days, ("topic", "day"), ("partition", "offset"), add)

    return merge


def build_writer(session: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    """Return the query, before its start."""
    records = read_topics(session, arguments, includeHeaders="true")
    writer = records.writeStream.queryName("compact-to-parquet")
    writer = writer.trigger(processingTime=f"{arguments.every} milliseconds")
    return writer.foreachBatch(merge_into(str(arguments.output)))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job; print a line of JSON for every batch."""
    arguments = parse(argv)
    check_options(arguments)
    session = build_session("compact-to-parquet")
    run_query(build_writer(session, arguments), arguments)
    session.stop()


def directory(text: str) -> Path:
    """Parse the path of a directory, which may not exist yet."""
    path = Path(text).absolute()
    if not text or "://" in text or (path.exists() and not path.is_dir()):
        raise argparse.ArgumentTypeError(f"must be a directory of this machine, not {text!r}")
    return path


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the job's arguments."""
    parser = JobParser(
        "Keep topics as Parquet files, one for each topic and day, every record exactly once."
    )
    add_topic_arguments(parser)
    files = "the directory of the files, which all executors share"
    add_option(parser, "--output", "DIR", files, directory, required=True)
    every = "interval of writes, of the files of days with new records"
    add_option(parser, "--every", "TIME", every, duration_ms, "10m")
    add_query_arguments(parser)
    return parser.parse(argv)


if __name__ == "__main__":
    run_job(main)
