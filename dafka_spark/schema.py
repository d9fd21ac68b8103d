"""The columns of a topic, and which of them a query asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dafka_core.options import unknown
from dafka_spark.errors import ColumnError

COLUMNS: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
}

MAY_BE_NULL: Final = ("key", "timestamp")
"""RFC 46 has no keys, and a store may not know when it wrote a record."""

TABLE_OPTIONS: Final = "dafka.options"
"""Metadata of column ``value``: a SQL table's options.

Spark 4.3 keeps the options of ``CREATE TABLE ... USING dafka OPTIONS (...)`` but does not hand
them to a Python source that reads the table; the schema is all it hands over.
"""


def full(table: Mapping[str, str] | None = None) -> StructType:
    """Every column; ``table`` are the options to keep with a SQL table."""
    fields = []
    for name, kind in COLUMNS.items():
        kept = {TABLE_OPTIONS: dict(table)} if table and name == "value" else {}
        fields.append(StructField(name, kind, nullable=True, metadata=kept))
    return StructType(fields)


def table_options(schema: StructType) -> dict[str, str]:
    """The options kept with the SQL table that ``schema`` comes from, if any."""
    kept: dict[str, Any] = {}
    for field in schema.fields:
        kept = kept or (field.metadata or {}).get(TABLE_OPTIONS, {})
    return kept


def checked(schema: StructType) -> StructType:
    """``schema`` itself, if its columns are some of ours with their types.

    Raises:
        ColumnError: a column is unknown, or of another type, or cannot be ``NOT NULL``.
    """
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in COLUMNS:
            raise ColumnError(field.name, unknown(field.name, COLUMNS).replace("option", "column"))
        if field.dataType != COLUMNS[field.name]:
            wanted = COLUMNS[field.name].simpleString()
            raise ColumnError(field.name, f"is {wanted}, not {kind}")
        if not field.nullable and field.name in MAY_BE_NULL:
            raise ColumnError(field.name, "has nulls, it cannot be NOT NULL")
    return schema
