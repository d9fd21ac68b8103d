"""Descriptor sets, as ``protoc`` writes them, Arrow streams, and decoded values."""

import base64
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.formats.codecs import Codec, concat_parts, decode_parts

DOUBLE, FLOAT, INT64, UINT64, INT32, BOOL, STRING = 1, 2, 3, 4, 5, 8, 9
MESSAGE, BYTES, UINT32, ENUM = 11, 12, 13, 14

TIME = {"type": MESSAGE, "type_name": ".google.protobuf.Timestamp"}
SIDE = {"type": ENUM, "type_name": ".a.Side"}
SUB = {"type": MESSAGE, "type_name": ".a.Sub"}
MANY = {"label": 3}


class File:
    """One file of definitions, of proto3 by default."""

    def __init__(self, syntax: str = "proto3") -> None:
        imported = [each.DESCRIPTOR.name for each in (timestamp_pb2, duration_pb2)]
        self.made = descriptor_pb2.FileDescriptorProto(
            name="a.proto", package="a", syntax=syntax, dependency=imported
        )

    def message(self, message: str, within: Any = None, /, **fields: Any) -> Any:
        """Add a message; a field is a type or members of its descriptor, numbered from 1."""
        made = self.made.message_type.add() if within is None else within.nested_type.add()
        made.name = message
        for number, (field, given) in enumerate(fields.items(), start=1):
            more = given if isinstance(given, dict) else {"type": given}
            made.field.add(**{"name": field, "number": number, "label": 1, **more})
        return made

    def map(self, within: Any, field: str, key: int, **value: Any) -> None:
        """Add a field that is a map."""
        name = field.title().replace("_", "")
        entry = self.message(f"{name}Entry", within, key=key, value=value)
        entry.options.map_entry = True
        kind = {"type": MESSAGE, "type_name": f".a.{within.name}.{entry.name}"}
        within.field.add(name=field, number=len(within.field) + 1, **MANY, **kind)

    def enum(self, name: str, *symbols: str) -> None:
        """Add an enum, numbered from 0."""
        made = self.made.enum_type.add(name=name)
        for number, symbol in enumerate(symbols):
            made.value.add(name=symbol, number=number)

    @property
    def content(self) -> bytes:
        """The descriptor set."""
        files = descriptor_pb2.FileDescriptorSet()
        for each in (timestamp_pb2, duration_pb2):
            each.DESCRIPTOR.CopyToProto(files.file.add())
        files.file.append(self.made)
        return bytes(files.SerializeToString())

    @property
    def text(self) -> str:
        """The descriptor set in base64."""
        return base64.b64encode(self.content).decode()


def trade() -> File:
    """Return definitions with a field of every kind."""
    file = File()
    file.enum("Side", "NONE", "BUY")
    file.message("Sub", x=DOUBLE, s=STRING)
    file.message("Nothing")
    made = file.message(
        "Trade",
        id=INT64,
        name={"type": STRING, "proto3_optional": True, "oneof_index": 1},
        small=UINT32,
        large=UINT64,
        at=TIME,
        took={"type": MESSAGE, "type_name": ".google.protobuf.Duration"},
        side=SIDE,
        tags={"type": STRING, **MANY},
        sub=SUB,
        subs={**SUB, **MANY},
        one={"type": INT32, "oneof_index": 0},
        two={"type": INT32, "oneof_index": 0},
        nothing={"type": MESSAGE, "type_name": ".a.Nothing"},
        raw=BYTES,
        ratio=FLOAT,
        ok=BOOL,
        times={**TIME, **MANY},
    )
    made.oneof_decl.add(name="which")
    made.oneof_decl.add(name="_name")
    file.map(made, "by_name", STRING, **SUB)
    file.map(made, "sides", UINT32, **SIDE)
    return file


def stream(columns: Any, compression: str | None = None, **given: Any) -> bytes:
    """Return a table as an Arrow stream of several batches."""
    table = pa.table(columns, **given)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1 << 20 if compression else 2)
    return bytes(sink.getvalue())


def decoded(codec: Codec, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    """Return the rows, and the reasons of bad values by their row."""
    parts = list(decode_parts(pa.array(values, pa.binary()), codec.decode))
    found = concat_parts(parts, to_arrow_type(codec.kind, timezone="UTC"))
    found.validate(full=True)
    return found.to_pylist(), {part.start: part.why for part in parts if part.why}
