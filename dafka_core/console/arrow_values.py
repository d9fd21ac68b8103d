"""Values that are Arrow streams or files."""

from __future__ import annotations

import io
import struct
from typing import Any, Final

import pyarrow as pa

STREAM: Final = b"\xff\xff\xff\xff"
FILE: Final = b"ARROW1\0\0"
MOST_ROWS: Final = 50
MOST_COLUMNS: Final = 200

_COMPRESSION: Final = 3
"""The number of the member of a record batch's metadata that says how it is compressed."""


def looks_so(value: bytes) -> bool:
    """Whether a value is a stream or a file."""
    return value.startswith(FILE) or (value.startswith(STREAM) and len(value) > 16)


def rows(value: bytes) -> tuple[Any, str]:
    """The first rows, and what is to be said of them.

    Raises:
        Exception: of any kind: it is no Arrow, or none that is safe to be read.
    """
    if not looks_so(value):
        raise ValueError("no Arrow stream, and no file")
    stream = value[len(FILE) :] if value.startswith(FILE) else value
    _check(stream)
    reader = pa.ipc.open_stream(pa.BufferReader(stream))
    if len(reader.schema) > MOST_COLUMNS:
        raise ValueError(f"more than {MOST_COLUMNS} columns")
    for field in reader.schema:
        _check_type(field.type)
    found: list[Any] = []
    for batch in reader:
        part = batch.slice(0, MOST_ROWS + 1 - len(found))
        part.validate(full=True)
        found += part.to_pylist()
        if len(found) > MOST_ROWS:
            return found[:MOST_ROWS], f"the first {MOST_ROWS} rows"
    return found, ""


def _check(stream: bytes) -> None:
    """Refuses compressed batches: few octets of them may stand for any number.

    Raises:
        ValueError: there is one.
    """
    for message in pa.ipc.MessageReader.open_stream(io.BytesIO(stream)):
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            raise ValueError("compressed Arrow is not opened here")


def _is_compressed(message: Any) -> bool:
    """Whether a batch's metadata, a flatbuffer, has a member ``compression``."""
    octets = message.metadata.to_pybytes()
    batch = _member(octets, struct.unpack_from("<I", octets)[0], 2)
    if message.type == "dictionary":
        batch = _member(octets, batch, 1)
    return bool(_member(octets, batch, _COMPRESSION))


def _member(octets: bytes, table: int, number: int) -> int:
    """Where a member of a table is that is a table itself; 0 if it has none."""
    if not table:
        return 0
    vtable = table - struct.unpack_from("<i", octets, table)[0]
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", octets, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", octets, vtable + place)[0]
    return table + offset + struct.unpack_from("<I", octets, table + offset)[0] if offset else 0


def _check_type(kind: pa.DataType, depth: int = 0) -> None:
    """Refuses types by which few octets are many values.

    Raises:
        ValueError: it is one.
    """
    if depth > 20:
        raise ValueError("types are too deep")
    if depth and (pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind)):
        raise ValueError(f"{kind} within another type is not opened here")
    if pa.types.is_nested(kind):
        if pa.types.is_union(kind) or not kind.num_fields:
            raise ValueError(f"{kind} is not opened here")
        if pa.types.is_fixed_size_list(kind) and kind.list_size > MOST_ROWS * 20:
            raise ValueError("lists are too long")
        for number in range(kind.num_fields):
            _check_type(kind.field(number).type, depth + 1)
    elif depth and pa.types.is_fixed_size_binary(kind) and not kind.byte_width:
        raise ValueError("values that take no octet are not opened here")
