"""The columns of a topic, and which of them a query asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types

from dafka_core.options import unknown
from dafka_spark.errors import ColumnError

COLUMNS: Final[Mapping[str, types.DataType]] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.StringType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
}

MAY_BE_NULL: Final = ("key", "timestamp")
"""RFC 46 has no keys, and a store may not know when it wrote a record."""

TABLE_OPTIONS: Final = "dafka.options"
"""Metadata of column ``value``: a SQL table's options.

Spark 4.3 keeps the options of ``CREATE TABLE ... USING dafka OPTIONS (...)`` but does not hand
them to a Python source that reads the table; the schema is all it hands over.
"""


def full(table: Mapping[str, str] | None = None) -> types.StructType:
    """Every column; ``table`` has the options to keep with a SQL table."""
    schema = types.StructType([types.StructField(name, kind) for name, kind in COLUMNS.items()])
    if table:
        schema["value"].metadata = {TABLE_OPTIONS: dict(table)}
    return schema


def table_options(schema: types.StructType) -> dict[str, str]:
    """The options kept with the SQL table that ``schema`` comes from, if any."""
    kept = [field.metadata[TABLE_OPTIONS] for field in schema if TABLE_OPTIONS in field.metadata]
    return kept[0] if kept else {}


def is_table(schema: types.StructType) -> bool:
    """Whether rows with this schema are inserted into a SQL table: Spark gives them its schema."""
    return schema.fieldNames() == [*COLUMNS] and bool(table_options(schema))


def checked(schema: types.StructType) -> types.StructType:
    """``schema`` itself, if its columns are some of ours, in any case, with their types.

    Raises:
        ColumnError: a column is unknown, or of another type, or cannot be ``NOT NULL``.
    """
    for field in schema:
        name = field.name.lower()
        if name not in COLUMNS:
            raise ColumnError(field.name, unknown(field.name, COLUMNS).replace("option", "column"))
        wanted, kind = COLUMNS[name], field.dataType
        if kind != wanted:
            raise ColumnError(field.name, f"is {wanted.simpleString()}, not {kind.simpleString()}")
        if not field.nullable and name in MAY_BE_NULL:
            raise ColumnError(field.name, "has nulls, it cannot be NOT NULL")
    return schema
