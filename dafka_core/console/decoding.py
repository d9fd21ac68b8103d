"""What a record's value, key or header is, as text that people can read.

Values come from anybody: nothing here runs what is in them, and what is made of them is bounded.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dafka_core.console import arrow_values, avro_values
from dafka_core.errors import ConfigError
from dafka_core.names import printable

AUTO: Final = "auto"
TEXT: Final = "text"
JSON: Final = "json"
AVRO: Final = "avro"
ARROW: Final = "arrow"
HEX: Final = "hex"
IMAGE: Final = "image"
NULL: Final = "null"
FORMATS: Final = (AUTO, TEXT, JSON, AVRO, ARROW, HEX)
"""What can be asked for; a picture is one by its first octets."""

MAX_TEXT_BYTES: Final = 256 << 10
"""Of a value, as text; the rest can be downloaded."""

MAX_HEX_BYTES: Final = 8 << 10
MAX_OPENED_BYTES: Final = 1 << 20
"""Of a value that is decoded: a larger one is shown as octets."""

PREVIEW_BYTES: Final = 400

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""Those that a browser draws without running anything; of pictures with scripts (SVG) there are
none."""

_TEXT_ENDS: Final = frozenset(b"\t\n\r")


class Decoded(NamedTuple):
    """What is shown of octets.

    Attributes:
        format: what they are taken for.
        text: what is shown.
        note: why it is not what was asked for, or what is left out; else empty.
        media: of a picture, its type.
    """

    format: str
    text: str
    note: str = ""
    media: str = ""


class NotDecodedError(Exception):
    """Octets are not what they were taken for; says why."""


def image_type(value: bytes) -> str:
    """The type of a picture, by its first octets; empty if it is none."""
    for magic, media in _IMAGES:
        if value.startswith(magic):
            return media
    is_webp = value[:4] == b"RIFF" and value[8:12] == b"WEBP"
    return "image/webp" if is_webp else ""


def guessed(value: bytes) -> str:
    """What octets look like."""
    if image_type(value):
        return IMAGE
    if arrow_values.looks_so(value):
        return ARROW
    if avro_values.looks_so(value):
        return AVRO
    head = value[:PREVIEW_BYTES]
    if not _is_text(head, whole=len(head) == len(value)):
        return HEX
    return JSON if head.lstrip()[:1] in (b"{", b"[") else TEXT


def preview(value: bytes | None) -> Decoded:
    """One line of a value, made from its first octets."""
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
    """All of a value that people can look at.

    Args:
        wanted: one of ``FORMATS``.
        schema: of Avro, as JSON; for values that are no files with their own.

    Raises:
        ConfigError: there is no such format.
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
        AVRO: lambda: _rows(AVRO, value, lambda: avro_values.rows(value, schema)),
        ARROW: lambda: _rows(ARROW, value, lambda: arrow_values.rows(value)),
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
        # A character may be cut at the end of a value's beginning.
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
        if made != word:  # so that the last part is always a word's own
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
