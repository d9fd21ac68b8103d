"""Values, keys and headers as readable text: JSON, Avro, Arrow and hexadecimal.

Values are untrusted: nothing in them is executed, and all output is bounded.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import itertools
import json
import re
import struct
import uuid
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from dafka_core.errors import ConfigError
from dafka_core.model.names import printable
from dafka_core.system.distribution import import_fastavro

STREAM: Final = b"\xff\xff\xff\xff"
FILE: Final = b"ARROW1\0\0"
MOST_ROWS: Final = 50
MOST_COLUMNS: Final = 200
MAX_DEPTH: Final = 30
"""Of the types of Arrow and Avro."""

_COMPRESSION: Final = 3  # field number of the compression in a record batch's metadata


def is_arrow(value: bytes) -> bool:
    """Return whether a value looks like an Arrow stream or file."""
    return value.startswith(FILE) or (value.startswith(STREAM) and len(value) > 16)


def arrow_rows(value: bytes) -> tuple[Any, str]:
    """Return the first rows and a note; raise any Exception for what is not safe to read."""
    if not is_arrow(value):
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
    """Refuse compressed batches, which can expand without limit."""
    for message in pa.ipc.MessageReader.open_stream(io.BytesIO(stream)):
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            raise ValueError("compressed Arrow is not opened here")


def _is_compressed(message: Any) -> bool:
    """Return whether a batch's metadata, a flatbuffer, has the field ``compression``."""
    octets = message.metadata.to_pybytes()
    batch = _member(octets, struct.unpack_from("<I", octets)[0], 2)
    if message.type == "dictionary":
        batch = _member(octets, batch, 1)
    return bool(_member(octets, batch, _COMPRESSION))


def _member(octets: bytes, table: int, number: int) -> int:
    """Return the position of a table's field that is a table itself; 0 if it is absent."""
    if not table:
        return 0
    vtable = table - struct.unpack_from("<i", octets, table)[0]
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", octets, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", octets, vtable + place)[0]
    return table + offset + struct.unpack_from("<I", octets, table + offset)[0] if offset else 0


_FLAT: Final = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_temporal, pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_binary, pa.types.is_large_binary),
)
_NESTED: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map, pa.types.is_struct)
_ROWS_ONLY: Final = (pa.types.is_null, pa.types.is_dictionary)
"""Types with values that may share bytes, or take none: for ``MOST_ROWS`` values that is little."""


def _check_type(kind: pa.DataType, depth: int = 0) -> None:
    """Refuse types in which a few bytes can be many values."""
    if depth > MAX_DEPTH:
        raise ValueError("types are too deep")
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        parts = [kind.value_type]
    is_short = pa.types.is_fixed_size_list(kind) and kind.list_size <= MOST_ROWS * 20
    is_bytes = pa.types.is_fixed_size_binary(kind) and kind.byte_width > 0
    allowed = _FLAT + (_NESTED if parts else ()) + (() if depth else _ROWS_ONLY)
    if not (is_short or is_bytes or any(is_one(kind) for is_one in allowed)):
        raise ValueError(f"{kind} is not opened here")
    for part in parts:
        _check_type(part, depth + 1)


MAGIC: Final = b"Obj\x01"
MAX_COMPRESSED_BYTES: Final = 64 << 10
"""Size of a compressed file: decompressed it may be a thousand times as large, about 64 MB."""

MAX_SCHEMA_CHARACTERS: Final = 64 << 10
MAX_NOTHINGS: Final = 1 << 20
"""Values without a byte in one value of a schema, times the bytes of the content: each byte of an
array may become that number of values."""

REGISTRY_HEADER: Final = 5  # prefix of a value with a schema in a registry: 0, and the schema's id


def _fastavro() -> Any:
    try:
        return import_fastavro()
    except ImportError:
        raise ValueError("it needs fastavro: pip install 'dafka-spark[avro]'") from None


def is_avro_file(value: bytes) -> bool:
    """Return whether a value is an Avro file."""
    return value.startswith(MAGIC)


def avro_rows(value: bytes, schema: str = "") -> tuple[Any, str]:
    """Return the rows of a file, or the single value, and a note.

    Raises:
        Exception: of any type: the value is not Avro, or not safe to read.
    """
    fastavro = _fastavro()
    if is_avro_file(value):
        reader: Any = fastavro.block_reader(io.BytesIO(value))
        if reader.codec not in CODECS:
            raise ValueError(f"compressed ({reader.codec}): only deflate is opened here")
        if reader.codec != "null" and len(value) > MAX_COMPRESSED_BYTES:
            raise ValueError(f"compressed, and larger than {MAX_COMPRESSED_BYTES:,} bytes")
        _check_avro(reader.writer_schema, len(value))
        found = list(itertools.islice(_avro_rows(reader), MOST_ROWS + 1))
        note = f"the first {MOST_ROWS} rows" if len(found) > MOST_ROWS else ""
        return found[:MOST_ROWS], note
    if not schema:
        raise ValueError("no file with a schema: give the schema that it was written with")
    if len(schema) > MAX_SCHEMA_CHARACTERS:
        raise ValueError(f"the schema has more than {MAX_SCHEMA_CHARACTERS:,} characters")
    parsed = json.loads(schema)
    _check_avro(parsed, len(value))
    skipped = REGISTRY_HEADER if value[:1] == b"\0" and len(value) > REGISTRY_HEADER else 0
    stream = io.BytesIO(value[skipped:])
    one: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(parsed), None)
    notes = ["without the 5 bytes of a schema registry" if skipped else ""]
    if left := len(value) - skipped - stream.tell():
        notes.append(f"{left:,} bytes follow the value: is it the right schema?")
    return one, "; ".join(filter(None, notes))


def _avro_rows(reader: Any) -> Iterator[Any]:
    """Yield a file's rows; refuse blocks that expand to too much."""
    for block in reader:
        if block.bytes_.getbuffer().nbytes > MAX_OPENED_BYTES:
            raise ValueError(f"a block is larger than {MAX_OPENED_BYTES:,} bytes")
        yield from block


def _check_avro(schema: Any, size_bytes: int) -> None:
    """Refuse a schema by which a few bytes could be read without end, or as too much.

    Raises ValueError if it is recursive, too deep, or has too many values that take no byte.
    """
    named: dict[str, tuple[int, bool] | None] = {}  # None while it is measured

    def measured(kind: Any, space: str, depth: int) -> tuple[int, bool]:
        """Return the number of a type's values that take no byte, and whether all of them do."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is deeper than {MAX_DEPTH} types")
        if isinstance(kind, list):  # a value begins with the number of its type
            parts = [measured(each, space, depth + 1) for each in kind]
            return max((nothings for nothings, _ in parts), default=0), False
        if isinstance(kind, str):
            if kind in _FLAT_TYPES:
                return int(kind == "null"), kind == "null"
            found = named.get(kind) or named.get(f"{space}.{kind}")
            if found is None:
                raise ValueError(f"type {kind[:100]} is within itself, or unknown")
            return found
        if (outer := kind["type"]) in ("array", "map"):
            items = kind["items" if outer == "array" else "values"]
            nothings, takes_none = measured(items, space, depth + 1)
            if takes_none and outer == "array":
                raise ValueError("it has arrays of items that take no byte")
            return nothings, False
        if outer not in ("record", "error", "enum", "fixed"):
            return measured(outer, space, depth + 1)
        name = kind["name"]
        space = kind.get("namespace") or name.rpartition(".")[0] or space
        full = name if "." in name or not space else f"{space}.{name}"
        named[full] = None
        parts = [measured(each["type"], space, depth + 1) for each in kind.get("fields", ())]
        takes_none = outer != "enum" and not kind.get("size") and all(none for _, none in parts)
        named[full] = found = sum(nothings for nothings, _ in parts) + takes_none, takes_none
        return found

    if measured(schema, "", 0)[0] * size_bytes > MAX_NOTHINGS:
        raise ValueError("the schema has too many values that take no byte")


CODECS: Final = ("null", "deflate")
_FLAT_TYPES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)


AUTO: Final = "auto"
TEXT: Final = "text"
JSON: Final = "json"
AVRO: Final = "avro"
ARROW: Final = "arrow"
HEX: Final = "hex"
IMAGE: Final = "image"
NULL: Final = "null"
FORMATS: Final = (AUTO, TEXT, JSON, AVRO, ARROW, HEX)
"""Formats that can be requested; images are recognized by their first bytes."""

MAX_TEXT_BYTES: Final = 256 << 10  # text shown of a value; the rest can be downloaded

MAX_HEX_BYTES: Final = 8 << 10
MAX_OPENED_BYTES: Final = 1 << 20
"""Largest value that is decoded; larger ones are shown as bytes."""

PREVIEW_BYTES: Final = 400

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""Images that browsers draw without scripts; SVG is not one of them."""

_TEXT_ENDS: Final = frozenset(b"\t\n\r")


class Decoded(NamedTuple):
    """The display of some bytes."""

    format: str  # the format by which they were decoded
    text: str
    note: str = ""  # why it is not the requested format, or what is left out; else empty
    media: str = ""  # an image's type


def image_type(value: bytes) -> str:
    """Return an image's type by its first bytes, or an empty string."""
    for magic, media in _IMAGES:
        if value.startswith(magic):
            return media
    is_webp = value[:4] == b"RIFF" and value[8:12] == b"WEBP"
    return "image/webp" if is_webp else ""


def guessed(value: bytes) -> str:
    """Guess a format."""
    if image_type(value):
        return IMAGE
    if is_arrow(value):
        return ARROW
    if is_avro_file(value):
        return AVRO
    head = value[:PREVIEW_BYTES]
    if not _is_text(head, whole=len(head) == len(value)):
        return HEX
    return JSON if head.lstrip()[:1] in (b"{", b"[") else TEXT


def preview(value: bytes | None) -> Decoded:
    """Return one line of a value, made from its first bytes."""
    if value is None:
        return Decoded(NULL, "")
    kind, head = guessed(value), value[:PREVIEW_BYTES]
    if kind == IMAGE:
        return Decoded(kind, "", media=image_type(value))
    if kind in (TEXT, JSON):
        line = " ".join(head.decode("utf-8", "ignore").split())
        return Decoded(kind, printable(line) + ("…" if len(value) > len(head) else ""))
    if kind in (AVRO, ARROW):
        return Decoded(kind, "")
    return Decoded(kind, value[:48].hex(" ") + (" …" if len(value) > 48 else ""))


def decoded(value: bytes | None, wanted: str = AUTO, schema: str = "") -> Decoded:
    """Return the whole display of a value.

    Args:
        wanted: one of ``FORMATS``.
        schema: of Avro, as JSON; for values without a schema of their own.
    """
    if wanted not in FORMATS:
        raise ConfigError("format", wanted[:100], f"must be one of {', '.join(FORMATS)}")
    if value is None:
        return Decoded(NULL, "")
    kind = guessed(value) if wanted == AUTO else wanted
    if kind == IMAGE:
        return Decoded(IMAGE, "", media=image_type(value))
    opened: dict[str, Callable[[], Decoded]] = {
        TEXT: lambda: _text(value, strict=wanted == TEXT),
        JSON: lambda: _json(value),
        AVRO: lambda: _rows(AVRO, lambda: avro_rows(value, schema)),
        ARROW: lambda: _rows(ARROW, lambda: arrow_rows(value)),
        HEX: lambda: _hex(value),
    }
    try:
        if kind in (JSON, AVRO, ARROW) and len(value) > MAX_OPENED_BYTES:
            raise ValueError(f"larger than {MAX_OPENED_BYTES:,} bytes")
        return opened[kind]()
    except Exception as error:  # noqa: BLE001 -- of hostile bytes a library may raise anything
        is_text = _is_text(value[:PREVIEW_BYTES], whole=False)
        found = _text(value, strict=False) if is_text else _hex(value)
        why = printable(str(error) or type(error).__name__)[:300]
        return found._replace(note=f"not {kind}: {why}")


def _is_text(octets: bytes, *, whole: bool) -> bool:
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        # The beginning of a value may end within a character.
        if whole or error.start < len(octets) - 4:
            return False
        text = octets[: error.start].decode()
    return not any(ord(each) < 32 and ord(each) not in _TEXT_ENDS for each in text)


def _text(value: bytes, *, strict: bool) -> Decoded:
    part = value[:MAX_TEXT_BYTES]
    text = part.decode("utf-8", "backslashreplace" if strict else "replace")
    lines = "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    left = len(value) - len(part)
    return Decoded(TEXT, lines, f"{left:,} more bytes" if left else "")


def _json(value: bytes) -> Decoded:
    text = value.decode()
    depth = max(accumulate(_STEPS[each] for each in _BRACKET.findall(text)), default=0)
    if len(text) * 2 * depth > MAX_INDENTED:
        msgspec.json.decode(text)
        return Decoded(JSON, *_cut(text))
    return Decoded(JSON, *_cut(msgspec.json.format(text)))


MAX_INDENTED: Final = 64 << 20  # characters that a value may have when it is indented, at most

_BRACKET: Final = re.compile(r"[][{}]")
_STEPS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


def _rows(kind: str, read: Callable[[], tuple[Any, str]]) -> Decoded:
    found, note = read()
    text, cut = _cut(_dumped(found))
    return Decoded(kind, text, "; ".join(filter(None, (note, cut))))


def _hex(value: bytes) -> Decoded:
    part, lines = value[:MAX_HEX_BYTES], []
    for start in range(0, len(part), 16):
        row = part[start : start + 16]
        seen = "".join(chr(each) if 32 <= each < 127 else "·" for each in row)
        lines.append(f"{start:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {seen}")
    left = len(value) - len(part)
    return Decoded(HEX, "\n".join(lines), f"{left:,} more bytes" if left else "")


def _dumped(found: object) -> str:
    encoder = json.JSONEncoder(indent=2, ensure_ascii=False, default=_plain)
    parts, size = [], 0
    for part in encoder.iterencode(found):
        parts.append(part)
        size += len(part)
        if size > MAX_TEXT_BYTES:
            break
    return "".join(parts)


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"0x{bytes(value).hex()}"
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID | dt.timedelta):
        return str(value)
    return repr(value)


def _cut(text: str) -> tuple[str, str]:
    lines = "\n".join(map(printable, text.split("\n")))
    if len(lines) <= MAX_TEXT_BYTES:
        return lines, ""
    return lines[:MAX_TEXT_BYTES], "the rest is left out"
