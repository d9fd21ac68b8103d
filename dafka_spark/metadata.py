"""The tables of option ``metadata``; ``source/metadata_reader.py`` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types

from dafka_spark.errors import ColumnError
from dafka_spark.schema import TABLE_OPTIONS, name_of

TOPICS: Final = "topics"
PARTITIONS: Final = "partitions"
STORES: Final = "stores"
QUERIES: Final = "queries"
LAG: Final = "lag"

_TEXT: Final = types.StringType()
_COUNT: Final = types.LongType()
_TIME: Final = types.TimestampType()
_SECONDS: Final = types.DoubleType()
_TEXTS: Final = types.ArrayType(_TEXT)

_HELD: Final = {
    "records": _COUNT,
    "size_bytes": _COUNT,
    "first_timestamp": _TIME,
    "last_timestamp": _TIME,
}
"""The bytes are those of the blocks.  C stores report records only: the other columns are null."""

_BEHIND: Final = {"records_behind": _COUNT, "bytes_behind": _COUNT, "seconds_behind": _SECONDS}

COLUMNS: Final[Mapping[str, Mapping[str, types.DataType]]] = {
    TOPICS: {"topic": _TEXT, "partitions": _COUNT, **_HELD},
    PARTITIONS: {
        "topic": _TEXT,
        "partition": _TEXT,
        "earliest": _COUNT,
        "end": _COUNT,
        **_HELD,
        "stores": _TEXTS,
    },
    STORES: {
        "store": _TEXT,
        "state": _TEXT,
        "locations": _TEXTS,
        "last_heard": _TIME,
        "partitions": _COUNT,
        "records": _COUNT,
        "file_bytes": _COUNT,
        "free_bytes": _COUNT,
        "leases": _COUNT,
        "oldest_lease_s": _SECONDS,
        "clock_ahead_s": _SECONDS,
    },
    QUERIES: {
        "query": _TEXT,
        "run": _TEXT,
        "state": _TEXT,
        "partitions": _COUNT,
        **_BEHIND,
        "reported_s": _SECONDS,
    },
    LAG: {
        "query": _TEXT,
        "run": _TEXT,
        "topic": _TEXT,
        "partition": _TEXT,
        "position": _COUNT,
        "end": _COUNT,
        **_BEHIND,
    },
}
"""The columns of each table (docs/spark.md explains them)."""

KINDS: Final = tuple(COLUMNS)


def full(kind: str, table: Mapping[str, str] | None = None) -> types.StructType:
    """Return all columns of a table, with the options of a SQL table."""
    columns = COLUMNS[kind].items()
    schema = types.StructType([types.StructField(name, type_) for name, type_ in columns])
    if table:
        schema.fields[0].metadata = {TABLE_OPTIONS: dict(table)}
    return schema


def check(schema: types.StructType, kind: str) -> None:
    """Check that a query's columns, in any case, are columns of a table with their types.

    Raises:
        ColumnError: a column is unknown, has another type, or is ``NOT NULL``.
    """
    for field in schema:
        name_of(field, COLUMNS[kind])
        if not field.nullable:
            raise ColumnError(field.name, "may have nulls, it cannot be NOT NULL")
