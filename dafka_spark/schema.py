"""The columns of a topic, and which of them a query asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types

from dafka_core.config.options import unknown
from dafka_spark.errors import ColumnError

COLUMNS: Final[Mapping[str, types.DataType]] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.StringType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(
        types.StructType(
            [
                types.StructField("key", types.StringType()),
                types.StructField("value", types.BinaryType()),
            ]
        )
    ),
}
"""Those of Spark's Kafka connector, but that a partition is a producer, by its name."""

HEADERS: Final = "headers"
"""The column that is there with option ``includeHeaders`` only."""

ERROR: Final = "_error"
CORRUPT: Final = "_corrupt_record"
ERRORS: Final = (ERROR, CORRUPT)
"""Columns that are there with option ``mode`` = ``PERMISSIVE`` only: why a value is bad, and the
value itself; null beside good ones."""

NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})

TABLE_OPTIONS: Final = "dafka.options"
"""Metadata of column ``value``: a SQL table's options.

Spark 4.3 keeps the options of ``CREATE TABLE ... USING dafka OPTIONS (...)`` but does not hand
them to a Python source that reads the table; the schema is all it hands over.
"""


def full(
    table: Mapping[str, str] | None = None,
    *,
    headers: bool = False,
    value: types.DataType = COLUMNS["value"],
    errors: bool = False,
) -> types.StructType:
    """Every column, those with headers and with errors if they are asked for.

    ``table`` has the options to keep with a SQL table, and ``value`` is the type of that column.
    """
    fields = [types.StructField(name, kind) for name, kind in COLUMNS.items()]
    schema = types.StructType([each for each in fields if headers or each.name != HEADERS])
    schema["value"].dataType = value
    if errors:
        schema.add(ERROR, types.StringType()).add(CORRUPT, types.BinaryType())
    if table:
        schema["value"].metadata = {TABLE_OPTIONS: dict(table)}
    return schema


def table_options(schema: types.StructType) -> dict[str, str]:
    """The options kept with the SQL table that ``schema`` comes from, if any."""
    kept = [field.metadata[TABLE_OPTIONS] for field in schema if TABLE_OPTIONS in field.metadata]
    return kept[0] if kept else {}


def is_table(schema: types.StructType) -> bool:
    """Whether rows with this schema are inserted into a SQL table: Spark gives them its schema."""
    names = [name for name in schema.names if name not in ERRORS]
    known = (full().names, full(headers=True).names)
    return names in known and bool(table_options(schema))


def check(
    schema: types.StructType,
    *,
    headers: bool,
    opens: bool,
    value: types.DataType = COLUMNS["value"],
    errors: bool = False,
) -> None:
    """Sees that a query's columns are some of ours, in any case, with their types.

    ``headers`` and ``errors`` say whether those are asked for, ``opens`` whether envelopes are
    opened, and ``value`` is the type of that column.

    Raises:
        ColumnError: a column is unknown, or of another type, or cannot be ``NOT NULL``.
    """
    whole = full(headers=True, value=value, errors=True)
    known = {field.name: field.dataType for field in whole}
    for field in schema:
        name = name_of(field, known)
        if name in ERRORS and not errors:
            raise ColumnError(field.name, "is there with option mode = PERMISSIVE only")
        if name == HEADERS and not headers:
            raise ColumnError(field.name, "is there with option includeHeaders = true only")
        if not field.nullable and name not in NEVER_NULL and (opens or errors or name != "value"):
            raise ColumnError(field.name, "has nulls, it cannot be NOT NULL")


def name_of(field: types.StructField, columns: Mapping[str, types.DataType]) -> str:
    """The column that a field is, whatever its case.

    Raises:
        ColumnError: none is called so, or it is of another type.
    """
    found = [name for name in columns if name.lower() == field.name.lower()]
    if not found:
        raise ColumnError(field.name, unknown(field.name, columns).replace("option", "column"))
    wanted, kind = columns[found[0]], field.dataType
    if kind != wanted:
        raise ColumnError(field.name, f"is {wanted.simpleString()}, not {kind.simpleString()}")
    return found[0]
