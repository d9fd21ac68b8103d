"""Files to which ``dafka copy`` writes records, and Parquet that it reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dafka_core.archive.record_files import SCHEMA, columns_of
from dafka_core.cli.places import CSV, JSON, PARQUET, Place
from dafka_core.cli.record_text import json_lines
from dafka_core.durable_files import open_new
from dafka_core.envelope_columns import HEADERS_TYPE
from dafka_core.errors import ConfigError
from dafka_core.names import escape, text_of
from dafka_core.near_names import what_there_is
from dafka_core.opened_records import opened_records
from dafka_core.records import RecordBatch

CSV_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")

_SCHEMA: Final = pa.schema([pa.field("topic", pa.string(), nullable=False), *SCHEMA])
_BATCH_ROWS: Final = 50_000

Write = Callable[[RecordBatch], None]


@contextmanager
def new_file(place: Place, *, overwrite: bool) -> Iterator[Write]:
    """Gives what writes records to a file, which is there, and on disk, when all are written.

    Raises:
        ConfigError: it is there already, or cannot be written.
    """
    try:
        with open_new(Path(place.name), replaces=overwrite) as file:
            writer = _WRITERS[place.kind](file)
            yield writer.write
            writer.close()
    except FileExistsError:
        why = "is there already: take another name, or --overwrite"
        raise ConfigError("file", escape(place.name), why) from None
    except OSError as error:
        raise ConfigError(
            "file", escape(place.name), f"cannot be written: {error.strerror}"
        ) from None


class _Parquet:
    """The columns that Spark gives of a topic, and those of ``dafka archive``."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(file, _SCHEMA, compression="zstd", compression_level=1)

    def write(self, batch: RecordBatch) -> None:
        columns = columns_of(batch)
        topic = pa.repeat(pa.scalar(escape(batch.topic)), batch.count)
        self._writer.write_batch(
            pa.RecordBatch.from_arrays([topic, *columns.columns], schema=_SCHEMA)
        )

    def close(self) -> None:
        self._writer.close()


class _Json:
    """Objects as ``dafka consume --json`` prints them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, batch: RecordBatch) -> None:
        self._file.write(json_lines(batch))

    def close(self) -> None:
        """Nothing is left to be written."""


class _Csv:
    """A line of names, and rows; octets are as they are, headers are left out."""

    def __init__(self, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")
        self._rows = csv.writer(self._text, lineterminator="\n")
        self._rows.writerow(CSV_COLUMNS)

    def write(self, batch: RecordBatch) -> None:
        topic, partition = escape(batch.topic), escape(batch.partition)
        self._rows.writerows(
            (
                *(topic, partition, each.offset),
                each.timestamp.isoformat() if each.timestamp else "",
                text_of(each.key or b""),
                text_of(each.value or b""),
            )
            for each in opened_records(batch)
        )

    def close(self) -> None:
        self._text.flush()
        self._text.detach()


_WRITERS: Final[dict[str, Any]] = {PARQUET: _Parquet, JSON: _Json, CSV: _Csv}


class ParquetRecords:
    """The records of a Parquet file, with column ``value`` and perhaps ``key`` and ``headers``.

    Raises:
        ConfigError: it cannot be read, or has no such columns.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        try:
            self._file = pq.ParquetFile(name)
        except (OSError, pa.ArrowInvalid) as error:
            why = str(error).splitlines()[0]
            raise ConfigError("file", escape(name), f"cannot be read: {why}") from None
        names = self._file.schema_arrow.names
        if "value" not in names:
            near = what_there_is("value", names, "columns")
            raise ConfigError("file", escape(name), f"has no column value ({near})")
        for column in ("value", "key"):
            kind = self._file.schema_arrow.field(column).type if column in names else pa.binary()
            if str(kind) not in ("binary", "string", "large_binary", "large_string"):
                why = f"its column {column} must be binary or string, and is {kind}"
                raise ConfigError("file", escape(name), why)
        self.count: int = self._file.metadata.num_rows
        self._columns = [each for each in ("value", "key", "headers") if each in names]

    def batches(self) -> Iterator[tuple[pa.Array, pa.Array | None, pa.Array | None]]:
        """Values, keys and headers, columns of some records at a time."""
        for batch in self._file.iter_batches(_BATCH_ROWS, columns=self._columns):
            key = batch["key"] if "key" in self._columns else None
            headers = batch["headers"] if "headers" in self._columns else None
            yield batch["value"], key, None if headers is None else headers.cast(HEADERS_TYPE)
