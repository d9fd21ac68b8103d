"""Values that are single Avro records, written with the schema that the query names.

A record does not contain its length or its types, so a column cannot be decoded at once: fastavro
decodes record by record, in a loop over a batch.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from dafka_core.system.distribution import import_fastavro
from dafka_spark.formats import import_extra

_PLAIN: Final[Mapping[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "bytes": types.BinaryType(),
    "fixed": types.BinaryType(),
    "string": types.StringType(),
    "enum": types.StringType(),
}
_LOGICAL: Final[Mapping[tuple[str, str], types.DataType]] = {
    ("int", "date"): types.DateType(),
    ("long", "timestamp-millis"): types.TimestampType(),
    ("long", "timestamp-micros"): types.TimestampType(),
    ("long", "local-timestamp-millis"): types.TimestampNTZType(),
    ("long", "local-timestamp-micros"): types.TimestampNTZType(),
}
"""The supported logical types; others are read as the type below, as ``from_avro`` reads them."""

_MAX_PRECISION: Final = 38


class AvroCodec:
    """One record in each value, decoded into a struct."""

    def __init__(self, schema: str) -> None:
        """``schema`` is an Avro schema, as JSON."""
        import_extra("fastavro", extra="avro")
        fastavro = import_fastavro()
        self._named: dict[str, Any] = {}
        try:
            self._schema = fastavro.parse_schema(_supported(json.loads(schema)), self._named)
        except Exception as error:  # noqa: BLE001 -- of a dozen classes
            raise ValueError(f"must be an Avro schema as JSON, or FILE.avsc: {error}") from None
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer
        try:
            self.kind: types.DataType = _type_of(self._schema, {})
        except (KeyError, TypeError) as error:
            raise ValueError(f"has an invalid type: {error}") from None
        if not isinstance(self.kind, types.StructType):
            raise ValueError("must be the Avro schema of a record")
        self._arrow = to_arrow_type(self.kind, timezone="UTC")

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``."""
        read, schema = self._read, self._schema
        rows: list[Any] = []
        try:
            for value in values.to_pylist():
                if value is None:
                    rows.append(None)
                    continue
                stream = io.BytesIO(value)
                rows.append(read(stream, schema, None))
                if stream.tell() != len(value):
                    raise ValueError("it has bytes after the record")
            return pa.array(rows, self._arrow)
        except Exception as error:  # noqa: BLE001 -- fastavro raises errors of many classes
            why = str(error) or type(error).__name__
            raise ValueError(f"it is not a record of this Avro schema: {why}") from None

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``."""
        _check_nulls(column.filter(column.is_valid()), self._schema, self._named)
        values: list[bytes | None] = []
        try:
            for row in column.to_pylist(maps_as_pydicts="strict"):
                stream = io.BytesIO()
                if row is not None:
                    self._write(stream, self._schema, row)
                values.append(None if row is None else stream.getvalue())
        except Exception as error:  # noqa: BLE001 -- fastavro raises errors of many classes
            raise ValueError(f"a row does not fit the schema: {error}") from None
        return pa.array(values, pa.binary())


def _check_nulls(column: pa.Array, schema: Any, named: Mapping[str, Any]) -> None:
    """Raise ValueError for a null boolean that the schema forbids: fastavro would write false.

    ``named`` has the types that the schema uses by their names.
    """
    branches = schema if isinstance(schema, list) else [schema]
    if column.null_count and "null" not in branches and "boolean" in map(_name, branches):
        raise ValueError("a row does not fit the schema: null on boolean")
    (kind,) = [each for each in branches if each != "null"] or [None]
    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    column = column.filter(column.is_valid())
    if _name(kind) == "record" and pa.types.is_struct(column.type):
        for field in kind["fields"]:
            if column.type.get_field_index(field["name"]) >= 0:
                _check_nulls(column.field(field["name"]), field["type"], named)
    elif _name(kind) == "array":
        _check_nulls(column.flatten(), kind["items"], named)
    elif _name(kind) == "map":
        _check_nulls(column.items, kind["values"], named)


def _name(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _supported(schema: Any) -> Any:
    """Return the schema without the logical types that are read as the type below."""
    if isinstance(schema, list):
        return [_supported(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: _supported(each) if name in ("type", "items", "values", "fields") else each
        for name, each in schema.items()
    }
    kind, logical = made.get("type"), made.get("logicalType")
    if logical != "decimal" and (str(kind), logical) not in _LOGICAL:
        made.pop("logicalType", None)
    return made


def _type_of(schema: Any, named: dict[str | None, types.DataType | None]) -> types.DataType:
    """Return Spark's type of a part of the schema; ``named`` has the types that have names."""
    schema = _without_null(schema) if isinstance(schema, list) else schema
    schema = {"type": schema} if isinstance(schema, str) else schema
    kind, logical, name = schema["type"], schema.get("logicalType"), schema.get("name")
    if kind in named:
        if (found := named[kind]) is None:
            raise ValueError(f"has the recursive type {kind!r}, for which Spark has no type")
        return found
    made: types.DataType | None = None
    named[name] = made
    match kind:
        case "record" if schema["fields"]:
            fields = [(each["name"], _type_of(each["type"], named)) for each in schema["fields"]]
            made = types.StructType([types.StructField(*field) for field in fields])
        case "array":
            made = types.ArrayType(_type_of(schema["items"], named))
        case "map":
            made = types.MapType(types.StringType(), _type_of(schema["values"], named))
        case "bytes" | "fixed" if logical == "decimal":
            if schema["precision"] <= _MAX_PRECISION:
                made = types.DecimalType(schema["precision"], schema.get("scale", 0))
        case _ if schema.get("size") != 0:  # five bytes may state an array of 2**31 empty values
            made = _LOGICAL.get((kind, logical)) or _PLAIN.get(kind)
    if made is None:
        raise ValueError(f"has {json.dumps(schema)[:100]}, for which Spark has no type")
    named[name] = made
    return made


def _without_null(union: list[Any]) -> Any:
    others = [each for each in union if each != "null"]
    if len(others) != 1:
        raise ValueError("has a union of several types, for which Spark has none")
    return others[0]
