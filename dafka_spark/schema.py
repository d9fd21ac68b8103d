"""The columns of a topic, and the check of the columns that a query names."""

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
"""The columns of Spark's Kafka connector, except that a partition is the name of a producer."""

HEADERS: Final = "headers"
"""The column that only option ``includeHeaders`` adds."""

ERROR: Final = "_error"
CORRUPT: Final = "_corrupt_record"
ERRORS: Final = (ERROR, CORRUPT)
"""The columns that only option ``mode`` = ``PERMISSIVE`` adds: why a value is bad, and the value.
Both are null for good values."""

NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})

TABLE_OPTIONS: Final = "dafka.options"
"""Metadata of column ``value``: a SQL table's options.

Spark 4.3 stores the options of ``CREATE TABLE ... USING dafka OPTIONS (...)`` but gives a Python
source that reads the table only its schema.
"""


def full(
    table: Mapping[str, str] | None = None,
    *,
    headers: bool = False,
    value: types.DataType = COLUMNS["value"],
    errors: bool = False,
) -> types.StructType:
    """Return the schema of a topic, with the columns of headers and of errors on request.

    ``table`` has the options to store in a SQL table's schema, and ``value`` is the type of that
    column.
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
    """Return the options that the schema of a SQL table has, if any."""
    kept = [field.metadata[TABLE_OPTIONS] for field in schema if TABLE_OPTIONS in field.metadata]
    return kept[0] if kept else {}


def is_table(schema: types.StructType) -> bool:
    """Return whether rows with this schema are inserted into a SQL table, which Spark gives it."""
    names = [name for name in schema.names if name not in ERRORS]
    return names in (full().names, full(headers=True).names) and bool(table_options(schema))


def plain_strings(kind: types.DataType) -> types.DataType:
    """Return the type with ``STRING`` for each ``CHAR(n)``, ``VARCHAR(n)`` and collated string.

    Spark passes each of these as plain strings.
    """
    match kind:
        case types.StringType() | types.CharType() | types.VarcharType():
            return types.StringType()
        case types.ArrayType():
            return types.ArrayType(plain_strings(kind.elementType), kind.containsNull)
        case types.MapType():
            key, value = plain_strings(kind.keyType), plain_strings(kind.valueType)
            return types.MapType(key, value, kind.valueContainsNull)
        case types.StructType():
            plain = [(each.name, plain_strings(each.dataType), each.nullable) for each in kind]
            return types.StructType([types.StructField(*each) for each in plain])
    return kind


def check(
    schema: types.StructType,
    *,
    headers: bool,
    opens: bool,
    value: types.DataType = COLUMNS["value"],
    errors: bool = False,
) -> None:
    """Check that the columns of a query are a topic's, in any case, with their types.

    ``headers`` and ``errors`` are true if options add these columns, and ``opens`` if the query
    opens envelopes; ``value`` is the type of that column.

    Raises:
        ColumnError: a column is unknown, has another type, or is ``NOT NULL`` but has nulls.
    """
    whole = full(headers=True, value=value, errors=True)
    known = {field.name: field.dataType for field in whole}
    for field in schema:
        name = name_of(field, known)
        if name in ERRORS and not errors:
            raise ColumnError(field.name, "exists with option mode = PERMISSIVE only")
        if name == HEADERS and not headers:
            raise ColumnError(field.name, "exists with option includeHeaders = true only")
        if not field.nullable and name not in NEVER_NULL and (opens or errors or name != "value"):
            raise ColumnError(field.name, "has nulls, it cannot be NOT NULL")


def name_of(field: types.StructField, columns: Mapping[str, types.DataType]) -> str:
    """Return the column that a field names, in any case.

    Raises:
        ColumnError: the column is unknown or has another type.
    """
    found = [name for name in columns if name.lower() == field.name.lower()]
    if not found:
        raise ColumnError(field.name, unknown(field.name, columns).replace("option", "column"))
    wanted, kind = columns[found[0]], field.dataType
    if kind != wanted:
        raise ColumnError(field.name, f"is {wanted.simpleString()}, not {kind.simpleString()}")
    return found[0]
