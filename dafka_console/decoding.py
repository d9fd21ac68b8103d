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
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from dafka_core.errors import ConfigError
from dafka_core.model.names import printable

STREAM: Final = b"\xff\xff\xff\xff"
FILE: Final = b"ARROW1\0\0"
MOST_ROWS: Final = 50
MOST_COLUMNS: Final = 200

_COMPRESSION: Final = 3
"""Field number of the compression in a record batch's metadata."""


def is_arrow(value: bytes) -> bool:
    """Return whether a value looks like an Arrow stream or file."""
    return value.startswith(FILE) or (value.startswith(STREAM) and len(value) > 16)


def arrow_rows(value: bytes) -> tuple[Any, str]:
    """Return the first rows, and a note.

    Raises:
        Exception: of any type: the value is not Arrow, or not safe to read.
    """
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
    """Refuse compressed batches, which can expand without limit.

    Raises:
        ValueError: a batch is compressed.
    """
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


def _check_type(kind: pa.DataType, depth: int = 0) -> None:
    """Refuse types in which a few bytes can be many values.

    Raises:
        ValueError: the type is one of them.
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
        raise ValueError("values that take no byte are not opened here")


MAGIC: Final = b"Obj\x01"
MAX_COMPRESSED_BYTES: Final = 64 << 10
"""Size of a compressed file: decompressed it may be a thousand times as large, about 64 MB."""

MAX_SCHEMA_CHARACTERS: Final = 64 << 10
MAX_DEPTH: Final = 30
REGISTRY_HEADER: Final = 5
"""Prefix of a value whose schema is in a registry: 0, and the schema's id."""


def is_avro_file(value: bytes) -> bool:
    """Return whether a value is an Avro file."""
    return value.startswith(MAGIC)


def avro_rows(value: bytes, schema: str = "") -> tuple[Any, str]:
    """Return the rows of a file, or the single value, and a note.

    Raises:
        Exception: of any type: the value is not Avro, or not safe to read.
    """
    try:
        import fastavro  # noqa: PLC0415 -- an extra
    except ImportError:
        raise ValueError("it needs fastavro: pip install 'dafka-spark[avro]'") from None

    if is_avro_file(value):
        reader: Any = fastavro.reader(io.BytesIO(value))
        codec = reader.metadata.get("avro.codec", "null")
        if codec != "null" and len(value) > MAX_COMPRESSED_BYTES:
            raise ValueError(
                f"compressed ({codec}), and larger than {MAX_COMPRESSED_BYTES:,} octets"
            )
        _check_avro(reader.writer_schema, ())
        found = list(itertools.islice(reader, MOST_ROWS + 1))
        note = f"the first {MOST_ROWS} rows" if len(found) > MOST_ROWS else ""
        return found[:MOST_ROWS], note
    if not schema:
        raise ValueError("no file with a schema: give the schema that it was written with")
    if len(schema) > MAX_SCHEMA_CHARACTERS:
        raise ValueError(f"the schema has more than {MAX_SCHEMA_CHARACTERS:,} characters")
    parsed = json.loads(schema)
    _check_avro(parsed, ())
    skipped = REGISTRY_HEADER if value[:1] == b"\0" and len(value) > REGISTRY_HEADER else 0
    stream = io.BytesIO(value[skipped:])
    one: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(parsed), None)
    notes = ["without the 5 bytes of a schema registry" if skipped else ""]
    if left := len(value) - skipped - stream.tell():
        notes.append(f"{left:,} bytes follow the value: is it the right schema?")
    return one, "; ".join(filter(None, notes))


def _check_avro(schema: Any, within: tuple[str, ...]) -> None:
    """Refuse a schema by which a few bytes could be read without end, or too deeply.

    Raises:
        ValueError: it is recursive, too deep, or has arrays of empty items.
    """
    if len(within) > MAX_DEPTH:
        raise ValueError(f"the schema is deeper than {MAX_DEPTH} types")
    if isinstance(schema, list):
        for each in schema:
            _check_avro(each, (*within, ""))
    elif isinstance(schema, str):
        if schema in within:
            raise ValueError(f"type {schema[:100]} is within itself")
    elif isinstance(schema, dict):
        name = str(schema.get("name", ""))
        full = f"{schema['namespace']}.{name}" if schema.get("namespace") else name
        below = (*within, name, full, full.rpartition(".")[2])
        kind = schema.get("type")
        if kind == "array" and _takes_nothing(schema.get("items")):
            raise ValueError("it has arrays whose items take no byte")
        parts = [schema.get("items"), schema.get("values")]
        parts += [each.get("type") for each in schema.get("fields", ()) if isinstance(each, dict)]
        if isinstance(kind, dict | list):
            parts.append(kind)
        for part in parts:
            if part is not None:
                _check_avro(part, below)


def _takes_nothing(schema: Any) -> bool:
    """Return whether a value of a type may take no bytes; true for unknown names."""
    if isinstance(schema, str):
        return schema not in _TAKES
    if isinstance(schema, list):
        return False  # a union encodes the chosen type
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if kind == "record":
        fields = schema.get("fields", ())
        return all(_takes_nothing(each.get("type")) for each in fields if isinstance(each, dict))
    if kind == "fixed":
        return not schema.get("size")
    return kind not in ("array", "map", "enum") and _takes_nothing(kind)


_TAKES: Final = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


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

MAX_TEXT_BYTES: Final = 256 << 10
"""Text shown of a value; the rest can be downloaded."""

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
    """The display of some bytes.

    Attributes:
        format: the format by which they were decoded.
        text: the text.
        note: why it is not the requested format, or what is left out; else empty.
        media: an image's type.
    """

    format: str
    text: str
    note: str = ""
    media: str = ""


class NotDecodedError(Exception):
    """The bytes do not have the expected format; the message says why."""


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

    Raises:
        ConfigError: the format is unknown.
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
        AVRO: lambda: _rows(AVRO, value, lambda: avro_rows(value, schema)),
        ARROW: lambda: _rows(ARROW, value, lambda: arrow_rows(value)),
        HEX: lambda: _hex(value),
    }
    try:
        return opened[kind]()
    except NotDecodedError as error:
        is_text = _is_text(value[:PREVIEW_BYTES], whole=False)
        found = _text(value, strict=False) if is_text else _hex(value)
        return found._replace(note=f"not {kind}: {error}")


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
    return Decoded(TEXT, lines, f"{left:,} more octets" if left else "")


def _json(value: bytes) -> Decoded:
    if len(value) > MAX_OPENED_BYTES:
        raise NotDecodedError(f"larger than {MAX_OPENED_BYTES:,} octets")
    try:
        text = value.decode()
        json.loads(text, parse_int=str)
    except (ValueError, RecursionError) as error:
        raise NotDecodedError(str(error) or type(error).__name__) from None
    return Decoded(JSON, *_cut(_indented(text)))


def _indented(text: str) -> str:
    parts: list[str] = []
    size, depth = 0, 0
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word in _ENDS:
            depth -= 1
        if word in _ENDS and parts and parts[-1] in _BEGINS:
            made = word
        elif word in _ENDS or (parts and parts[-1] in (*_BEGINS, ",")):
            made = f"\n{'  ' * depth}{word}"
        else:
            made = " " + word if parts and parts[-1] == ":" else word
        if word in _BEGINS:
            depth += 1
        if made != word:  # so that the last part always belongs to a word
            parts.append(made.removesuffix(word))
        parts.append(word)
        size += len(made)
        if size > MAX_TEXT_BYTES:
            break
    return "".join(parts)


_BEGINS: Final = ("[", "{")
_ENDS: Final = ("]", "}")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def _rows(kind: str, value: bytes, read: Callable[[], tuple[Any, str]]) -> Decoded:
    if len(value) > MAX_OPENED_BYTES:
        raise NotDecodedError(f"larger than {MAX_OPENED_BYTES:,} octets")
    try:
        found, note = read()
        text, cut = _cut(_dumped(found))
    except Exception as error:  # noqa: BLE001 -- of hostile octets a library may raise anything
        raise NotDecodedError(printable(str(error) or type(error).__name__)[:300]) from None
    return Decoded(kind, text, "; ".join(filter(None, (note, cut))))


def _hex(value: bytes) -> Decoded:
    part, lines = value[:MAX_HEX_BYTES], []
    for start in range(0, len(part), 16):
        row = part[start : start + 16]
        seen = "".join(chr(each) if 32 <= each < 127 else "·" for each in row)
        lines.append(f"{start:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {seen}")
    left = len(value) - len(part)
    return Decoded(HEX, "\n".join(lines), f"{left:,} more octets" if left else "")


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
