"""Values that are JSON objects, decoded and encoded by column.

Arrow reads many objects at once and does not report which value each object came from.  So each
value is wrapped in an object and an array, ``{"v":[VALUE]}``.  Then no value is skipped, no object
begins in one value and ends in another, and each value is one row if the arrays are as many as the
values, each with one element.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from dafka_core.model.values import Values
from dafka_spark.formats import check_names

_NULL: Final = Values.of([b"null"]).to_arrow()[0]  # pa.scalar would load pandas

_TEXTS: Final = (types.DateType, types.TimestampType, types.TimestampNTZType, types.StringType)
"""Types that are strings in JSON; Arrow parses the times."""

_ENDS_EARLY: Final = r"[}l]\s*\]\s*,"
"""The end of an object or a null that may close the array around it, and add a member beside ours.

Such values are read again in two arrays: text that closes one array does not close both."""

_CONTROLS: Final = "[\\x00-\\x1f]"

_MAX_DAYS: Final = 11_248_737
"""The days from 1970 to the end of the year 32767: Arrow writes later ones as other years."""


class JsonCodec:
    """One JSON object in each value, decoded into a struct."""

    def __init__(self, kind: types.DataType) -> None:
        """``kind`` is the struct."""
        if not isinstance(kind, types.StructType):
            raise ValueError(f"is {kind.simpleString()}, a JSON object is made of a struct")
        self.kind: types.DataType = kind
        self._arrow = to_arrow_type(kind, timezone="UTC")
        self._kind = _read_as(kind)

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``; fields that the schema lacks are ignored."""
        if not len(values):
            return pa.array([], self._arrow)
        try:
            values.cast(pa.utf8())
        except pa.ArrowInvalid:
            raise ValueError("it is not UTF-8") from None
        whole = values.fill_null(_NULL) if values.null_count else values
        decoded = self._read(whole, 1).cast(self._arrow)
        ends_early = pc.match_substring_regex(whole, _ENDS_EARLY)
        if pc.any(ends_early).as_py():
            self._read(whole.filter(ends_early), 2)
        if _has_infinity(decoded):
            raise ValueError("a number is too large")
        return decoded

    def _read(self, values: pa.Array, depth: int) -> pa.Array:
        """Read values that are wrapped in ``depth`` nested arrays."""
        kind = self._kind
        for _ in range(depth):
            kind = pa.list_(kind)
        before, after = b'{"v":' + b"[" * depth, b"]" * depth + b"}\n"
        lines = pc.binary_join_element_wise(_binary(before), values, _binary(after), _binary(b""))
        _, text = Values.from_arrow(lines).columns()
        # One block: else Arrow cuts at a line feed, which may be within a value.
        reading = pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        parsing = pa.json.ParseOptions(pa.schema([("v", kind)]), unexpected_field_behavior="ignore")
        try:
            read = pa.json.read_json(pa.BufferReader(text), reading, parsing)
        except pa.ArrowInvalid as error:
            # The message names the column, without the arrays around it.
            why = str(error).replace("Column(/v" + "/[]" * depth, "Column(", 1)
            raise ValueError(why) from None
        column = pa.concat_arrays(read.column(0).chunks)
        for _ in range(depth):
            counts = pc.fill_null(pc.list_value_length(column), 0)
            if len(column) != len(values) or not pc.all(pc.equal(counts, 1)).as_py():
                raise ValueError("it is not one JSON value")
            column = column.flatten()
        return column

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``; fields that are null are left out, as ``to_json`` leaves them out."""
        # Spark may use other types: large strings, and timestamps in the session's time zone.
        return _text(column.cast(self._arrow))


def _binary(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _has_infinity(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(_has_infinity, column.flatten()))
    if pa.types.is_list(kind):
        return _has_infinity(column.flatten())
    return pa.types.is_floating(kind) and bool(pc.any(pc.is_inf(column)).as_py())


def _read_as(kind: types.DataType) -> pa.DataType:
    match kind:
        case types.StructType():
            check_names(kind)
            return pa.struct([(field.name, _read_as(field.dataType)) for field in kind])
        case types.ArrayType():
            return pa.list_(_read_as(kind.elementType))
    if isinstance(kind, _TEXTS):
        return pa.utf8()
    if isinstance(kind, (types.NumericType, types.BooleanType)):
        return to_arrow_type(kind)
    cures = {
        "binary": "; use STRING and unbase64(...)",
        "map": "; use a STRUCT with the keys that you need",
    }
    cure = cures.get(kind.typeName(), "")
    raise ValueError(f"has {kind.simpleString()}, which has no form in JSON{cure}")


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind):
        return _objects(column)
    if pa.types.is_list(kind):
        return _lists(column)
    if pa.types.is_string(kind):
        return _quoted(_escaped(column))
    if pa.types.is_temporal(kind):
        days = pc.min_max(column.cast(pa.date32()).view(pa.int32())).as_py()
        if max(-(days["min"] or 0), days["max"] or 0) > _MAX_DAYS:
            raise ValueError("has a time beyond the year 32767")
        return _quoted(pc.replace_substring(column.cast(pa.utf8()), " ", "T"))
    texts = column.cast(pa.utf8())
    if pa.types.is_floating(kind):  # JSON has no NaN and no infinity
        texts = pc.if_else(pc.is_finite(column), texts, pa.scalar(None, pa.utf8()))
    return texts


def _objects(column: pa.StructArray) -> pa.Array:
    members = pa.array([""] * len(column), pa.utf8())
    for name, values in zip(column.type.names, column.flatten(), strict=True):
        prefix = f",{json.dumps(name, ensure_ascii=False)}:"
        member = pc.binary_join_element_wise(prefix, _text(values), "")
        members = pc.binary_join_element_wise(members, member.fill_null(""), "")
    # The brace replaces the first comma, if any.
    texts = pc.binary_join_element_wise(pc.utf8_replace_slice(members, 0, 1, "{"), "}", "")
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.utf8()))


def _lists(column: pa.ListArray) -> pa.Array:
    elements = _text(column.flatten()).fill_null("null")
    counts = pc.list_value_length(column).fill_null(0)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
    texts = pc.binary_join(pa.ListArray.from_arrays(ends, elements), ",")
    texts = pc.binary_join_element_wise("[", texts, "]", "")
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.utf8()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    """Escape strings for JSON."""
    for mark in ("\\", '"'):
        texts = pc.replace_substring(texts, mark, f"\\{mark}")
    if pc.any(pc.match_substring_regex(texts, _CONTROLS)).as_py():
        for code in range(0x20):
            texts = pc.replace_substring(texts, chr(code), f"\\u{code:04x}")
    return texts
