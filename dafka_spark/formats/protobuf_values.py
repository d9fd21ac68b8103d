"""Values that are single messages of Protocol Buffers, of one type that the query names.

The library decodes message by message, in a loop over a batch; columns are built field by field.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain, compress
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.formats import import_extra

EXTRA: Final = "protobuf"

_MAX_NAMED: Final = 10
_MICROS: Final = 1_000_000
_NANOS: Final = 1_000

_PLAIN: Final[Mapping[int, tuple[types.DataType, pa.DataType]]] = {
    8: (types.BooleanType(), pa.bool_()),
    **dict.fromkeys((5, 15, 17), (types.IntegerType(), pa.int32())),
    **dict.fromkeys((7, 13), (types.IntegerType(), pa.uint32())),
    **dict.fromkeys((3, 16, 18), (types.LongType(), pa.int64())),
    **dict.fromkeys((4, 6), (types.LongType(), pa.uint64())),
    2: (types.FloatType(), pa.float32()),
    1: (types.DoubleType(), pa.float64()),
    9: (types.StringType(), pa.utf8()),
    12: (types.BinaryType(), pa.binary()),
}
"""By a type's number in descriptor.proto: Spark's type, as in ``from_protobuf`` by default, and the
type of the library's values."""

_TIMES: Final[Mapping[str, types.DataType]] = {
    "Timestamp": types.TimestampType(),
    "Duration": types.DayTimeIntervalType(),
}
_TIME_FIELDS: Final = ["seconds", "nanos"]


class ProtobufCodec:
    """One message in each value, decoded into a struct."""

    def __init__(self, schema: str, message_name: str) -> None:
        """``schema`` is a descriptor set in base64, and ``message_name`` names a message in it."""
        factory = import_extra("google.protobuf.message_factory", extra=EXTRA)
        descriptor = _message_of(schema, message_name)
        self._class = factory.GetMessageClass(descriptor)
        self._fields = _Fields(descriptor, ())
        if not self._fields.kind.fields:
            raise ValueError(f"has no fields in message {message_name!r}")
        self.kind: types.DataType = self._fields.kind
        self._arrow = to_arrow_type(self.kind, timezone="UTC")

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``."""
        made, parse = self._class, self._class.FromString
        try:
            messages = [made() if each is None else parse(each) for each in values.to_pylist()]
            valid = values.is_valid().to_pylist()
            for message in compress(messages, valid if self._fields.has_required else ()):
                if not message.IsInitialized():
                    lacks = ", ".join(message.FindInitializationErrors())
                    raise ValueError(f"required fields are missing: {lacks}")
            return _masked(self._fields.structs(messages), valid).cast(self._arrow)
        except Exception as error:  # noqa: BLE001 -- of the library, and overflows
            why = f"it is not such a message: {str(error) or type(error).__name__}"
            raise ValueError(why) from None

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``; a null is a field that is left out, if it has presence."""
        whole = column.cast(self._arrow).take(pa.array(range(len(column)), pa.int32()))
        rows = self._fields.arguments(whole).to_pylist(maps_as_pydicts="strict")
        made = self._class
        try:
            values = [
                None if row is None else made(**row).SerializeToString(deterministic=True)
                for row in rows
            ]
        except Exception as error:  # noqa: BLE001 -- of several classes
            raise ValueError(f"a row does not fit the schema: {error}") from None
        return pa.array(values, pa.binary())


def _message_of(schema: str, name: str) -> Any:
    """Return the descriptor of a message in a descriptor set."""
    form = "must be a descriptor set, FILE.desc as 'protoc --include_imports' writes it, or base64"
    pool = import_extra("google.protobuf.descriptor_pool", extra=EXTRA).DescriptorPool()
    parse = import_extra("google.protobuf.descriptor_pb2", extra=EXTRA).FileDescriptorSet.FromString
    try:
        files = parse(base64.b64decode(schema, validate=True)).file
        for file in files:
            pool.Add(file)
        found = [pool.FindFileByName(file.name) for file in files]
    except Exception as error:  # noqa: BLE001 -- of several classes
        raise ValueError(f"{form}: {str(error) or type(error).__name__}") from None
    messages = [each for file in found for each in file.message_types_by_name.values()]
    for each in messages:  # the list grows
        messages += each.nested_types
    if not messages:
        raise ValueError(f"{form}: it is empty")
    named = [each for each in messages if name in (each.full_name, each.name)]
    named = [each for each in named if each.full_name == name] or named
    if len(named) == 1:
        return named[0]
    there = ", ".join(sorted(each.full_name for each in named or messages)[:_MAX_NAMED])
    raise ValueError(
        f"has {'more than one' if named else 'no'} message {name!r}; there are {there}"
    )


class _Fields:
    """The fields of a message type, and conversions of messages to structs and back."""

    def __init__(self, descriptor: Any, within: tuple[str, ...]) -> None:
        name = descriptor.full_name
        if name in within:
            raise ValueError(f"has the recursive type {name!r}, for which Spark has no type")
        fields = [_Field(each, (*within, name)) for each in descriptor.fields]
        # As ``from_protobuf``, without messages that have no fields: Spark has no empty structs.
        self._fields = [each for each in fields if each.kind is not None]
        self.has_required: bool = any(each.has_required for each in fields)
        self._oneofs = [{each.name for each in one.fields} for one in descriptor.oneofs]
        self.kind: types.StructType = types.StructType(
            [types.StructField(each.name, each.kind) for each in self._fields if each.kind]
        )

    def structs(self, messages: Sequence[Any]) -> pa.StructArray:
        columns = [field.column(messages) for field in self._fields]
        return pa.StructArray.from_arrays(columns, self.kind.names)

    def arguments(self, structs: pa.StructArray) -> pa.StructArray:
        """Convert structs to the arguments of the library's messages."""
        there = structs.is_valid()
        columns = structs.flatten()
        for oneof in self._oneofs:
            named = zip(self.kind.names, columns, strict=True)
            counted = [each.is_valid().cast(pa.int32()) for name, each in named if name in oneof]
            if counted and pc.any(pc.greater(reduce(pc.add, counted), 1)).as_py():
                raise ValueError(
                    f"a row does not fit the schema: only one of {sorted(oneof)} may be set"
                )
        given = []
        for field, column in zip(self._fields, columns, strict=True):
            if not field.is_optional and pc.any(pc.and_(column.is_null(), there)).as_py():
                raise ValueError(_NULL.format(field.name))
            given.append(field.arguments(column))
        mask = pc.invert(there) if structs.null_count else None
        return pa.StructArray.from_arrays(given, self.kind.names, mask=mask)


_NULL: Final = "a row does not fit the schema: null in field {!r}, which always has a value"


class _Field:
    """One field: conversions of its values in messages to a column and back.

    Attributes:
        kind: its type in Spark; None for a message without fields, which is left out.
        is_optional: whether a missing field is null in Spark.
        has_required: whether it is required, or a field in it is, as proto2 allows.
    """

    def __init__(self, descriptor: Any, within: tuple[str, ...]) -> None:
        self.name: str = descriptor.name
        self.is_optional: bool = descriptor.has_presence and not descriptor.has_default_value
        self.has_required: bool = descriptor.is_required
        self._is_list: bool = descriptor.is_repeated
        self._fields: _Fields | None = None
        self._entry: tuple[_Field, _Field] | None = None
        self._symbols: dict[int, str] = {}
        self._unknown = ""
        self._time = self._plain = None
        kind: types.DataType | None
        if inner := descriptor.message_type:
            if inner.name in _TIMES and [each.name for each in inner.fields] == _TIME_FIELDS:
                kind = self._time = _TIMES[inner.name]
            elif inner.GetOptions().map_entry:
                key, value = (_Field(each, within) for each in inner.fields)
                self._entry, self.has_required = (key, value), value.has_required
                kind = types.MapType(key.kind, value.kind) if key.kind and value.kind else None
            else:
                self._fields = _Fields(inner, within)
                self.has_required |= self._fields.has_required
                kind = self._fields.kind if self._fields.kind.fields else None
        elif enum := descriptor.enum_type:
            kind = types.StringType()
            self._symbols = {each.number: each.name for each in reversed(enum.values)}
            self._numbers = {each.name: each.number for each in enum.values}
            self._unknown = f"UNKNOWN_ENUM_VALUE_{enum.name}_"
        else:
            kind, self._plain = _PLAIN[descriptor.type]
        is_array = self._is_list and self._entry is None and kind is not None
        self.kind: types.DataType | None = types.ArrayType(kind) if is_array and kind else kind
        self._arrow = to_arrow_type(kind, timezone="UTC") if kind else None

    def column(self, messages: Sequence[Any]) -> pa.Array:
        found = list(map(attrgetter(self.name), messages))
        if not self._is_list:
            made = self.elements(found)
            if not self.is_optional:
                return made
            return _masked(made, [each.HasField(self.name) for each in messages])
        ends = pa.array(np.append(0, np.cumsum(list(map(len, found)), dtype=np.int64)), pa.int32())
        each_one = list(chain.from_iterable(found))  # the keys of a map
        if self._entry is None:
            return pa.ListArray.from_arrays(ends, self.elements(each_one))
        key, value = self._entry
        items = list(chain.from_iterable(each.values() for each in found))
        return pa.MapArray.from_arrays(ends, key.elements(each_one), value.elements(items))

    def elements(self, found: Sequence[Any]) -> pa.Array:
        """Return the column of values of this field, one for each row."""
        if self._fields is not None:
            return self._fields.structs(found)
        if self._time is not None:
            seconds, nanos = (
                pa.array(list(map(attrgetter(name), found)), pa.int64()) for name in _TIME_FIELDS
            )
            micros = pc.divide(nanos, _NANOS)
            made = pc.add_checked(pc.multiply_checked(seconds, _MICROS), micros)
        elif self._symbols:
            symbols, unknown = self._symbols, self._unknown
            return pa.array([symbols.get(each) or f"{unknown}{each}" for each in found], pa.utf8())
        else:
            made = pa.array(found, self._plain)
        return made if made.type == self._arrow else made.view(self._arrow)

    def arguments(self, column: pa.Array) -> pa.Array:
        """Convert this field's column to the arguments of the library's messages."""
        if not self._is_list:
            return self._taken(column)
        if self._entry is None:
            return pa.ListArray.from_arrays(column.offsets, self.element_arguments(column.values))
        key, value = self._entry
        keys, items = key.element_arguments(column.keys), value.element_arguments(column.items)
        return pa.MapArray.from_arrays(column.offsets, keys, items)

    def element_arguments(self, column: pa.Array) -> pa.Array:
        """Convert the elements of lists and maps, none of which may be null."""
        if column.null_count:
            raise ValueError(_NULL.format(self.name))
        return self._taken(column)

    def _taken(self, column: pa.Array) -> pa.Array:
        if self._fields is not None:
            return self._fields.arguments(column)
        if self._time is not None:
            micros = column.view(pa.int64())
            seconds = pc.divide(micros, _MICROS)
            rest = pc.subtract(micros, pc.multiply(seconds, _MICROS))
            if isinstance(self._time, types.TimestampType):  # its nanoseconds are never negative
                earlier = pc.less(rest, 0)
                seconds = pc.subtract(seconds, earlier.cast(pa.int64()))
                rest = pc.if_else(earlier, pc.add(rest, _MICROS), rest)
            columns = [seconds, pc.multiply(rest, _NANOS)]
            mask = column.is_null() if column.null_count else None
            return pa.StructArray.from_arrays(columns, _TIME_FIELDS, mask=mask)
        if self._symbols:
            names = pa.array(list(self._numbers), pa.utf8())
            at = pc.index_in(column, names)
            wrong = column.filter(pc.and_(at.is_null(), column.is_valid()))
            if len(wrong):
                raise ValueError(f"field {self.name!r} has no symbol {wrong[0].as_py()!r}")
            return pa.array(list(self._numbers.values()), pa.int32()).take(at)
        return column if column.type == self._plain else column.view(self._plain)


def _masked(column: pa.Array, valid: list[bool]) -> pa.Array:
    if all(valid):
        return column
    there = pa.array(valid, pa.bool_())
    if pa.types.is_struct(column.type):
        fields, mask = list(column.type), pc.invert(there)
        return pa.StructArray.from_arrays(column.flatten(), fields=fields, mask=mask)
    return pc.if_else(there, column, pa.scalar(None, column.type))
