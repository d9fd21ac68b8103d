"""Descriptor sets, as ``protoc`` writes them."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2

DOUBLE, FLOAT, INT64, UINT64, INT32, BOOL, STRING = 1, 2, 3, 4, 5, 8, 9
MESSAGE, BYTES, UINT32, ENUM = 11, 12, 13, 14


class File:
    """One file of definitions, of proto3 by default."""

    def __init__(self, name: str = "a", syntax: str = "proto3") -> None:
        self.made = descriptor_pb2.FileDescriptorProto(
            name=f"{name}.proto",
            package=name,
            syntax=syntax,
            dependency=[each.DESCRIPTOR.name for each in (timestamp_pb2, duration_pb2)],
        )

    def message(self, message: str, within: Any = None, /, **fields: Any) -> Any:
        """A message; fields are a type, or what a field's descriptor has, numbered from 1 on."""
        made = self.made.message_type.add() if within is None else within.nested_type.add()
        made.name = message
        for number, (field, given) in enumerate(fields.items(), start=1):
            more = given if isinstance(given, dict) else {"type": given}
            made.field.add(**{"name": field, "number": number, "label": 1, **more})
        return made

    def map(self, within: Any, field: str, key: int, **value: Any) -> None:
        """A field that is a map."""
        entry = self.message(f"{field.title()}Entry", within, key=key, value=value)
        entry.options.map_entry = True
        kind = f".{self.made.package}.{within.name}.{entry.name}"
        number = len(within.field) + 1
        within.field.add(name=field, number=number, label=3, type=MESSAGE, type_name=kind)

    def enum(self, name: str, *symbols: str) -> None:
        """An enum, numbered from 0 on."""
        made = self.made.enum_type.add(name=name)
        for number, symbol in enumerate(symbols):
            made.value.add(name=symbol, number=number)

    @property
    def octets(self) -> bytes:
        """The descriptor set."""
        files = descriptor_pb2.FileDescriptorSet()
        for each in (timestamp_pb2, duration_pb2):
            each.DESCRIPTOR.CopyToProto(files.file.add())
        files.file.append(self.made)
        return bytes(files.SerializeToString())

    @property
    def text(self) -> str:
        """The descriptor set in base64."""
        return base64.b64encode(self.octets).decode()
