"""Values in Avro: files with a schema, and values whose schema somebody gives."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any, Final

MAGIC: Final = b"Obj\x01"
MOST_ROWS: Final = 50
MAX_COMPRESSED_BYTES: Final = 64 << 10
"""Of a file whose blocks are compressed, which may be a thousand times as large when they are not:
some 64 MB."""

MAX_SCHEMA_CHARACTERS: Final = 64 << 10
MAX_DEPTH: Final = 30
REGISTRY_HEADER: Final = 5
"""Octets before a value whose schema is in a registry: 0, and the schema's number."""


def looks_so(value: bytes) -> bool:
    """Whether a value is a file."""
    return value.startswith(MAGIC)


def rows(value: bytes, schema: str = "") -> tuple[Any, str]:
    """The rows of a file, or the one value; and what is to be said of them.

    Raises:
        Exception: of any kind: it is no Avro, or none that is safe to be read.
    """
    try:
        import fastavro  # noqa: PLC0415 -- an extra
    except ImportError:
        raise ValueError("it needs fastavro: pip install 'dafka-spark[avro]'") from None

    if looks_so(value):
        reader: Any = fastavro.reader(io.BytesIO(value))
        codec = reader.metadata.get("avro.codec", "null")
        if codec != "null" and len(value) > MAX_COMPRESSED_BYTES:
            raise ValueError(
                f"compressed ({codec}), and larger than {MAX_COMPRESSED_BYTES:,} octets"
            )
        _check(reader.writer_schema, ())
        found = list(itertools.islice(reader, MOST_ROWS + 1))
        note = f"the first {MOST_ROWS} rows" if len(found) > MOST_ROWS else ""
        return found[:MOST_ROWS], note
    if not schema:
        raise ValueError("no file with a schema: give the schema that it was written with")
    if len(schema) > MAX_SCHEMA_CHARACTERS:
        raise ValueError(f"the schema has more than {MAX_SCHEMA_CHARACTERS:,} characters")
    parsed = json.loads(schema)
    _check(parsed, ())
    skipped = REGISTRY_HEADER if value[:1] == b"\0" and len(value) > REGISTRY_HEADER else 0
    stream = io.BytesIO(value[skipped:])
    one: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(parsed), None)
    notes = ["without the 5 octets of a schema registry" if skipped else ""]
    if left := len(value) - skipped - stream.tell():
        notes.append(f"{left:,} octets follow the value: is it the right schema?")
    return one, "; ".join(filter(None, notes))


def _check(schema: Any, within: tuple[str, ...]) -> None:
    """Refuses a schema by which few octets would be read for ever, or to any depth.

    Raises:
        ValueError: it has a type within itself, is too deep, or has arrays of nothing.
    """
    if len(within) > MAX_DEPTH:
        raise ValueError(f"the schema is deeper than {MAX_DEPTH} types")
    if isinstance(schema, list):
        for each in schema:
            _check(each, (*within, ""))
    elif isinstance(schema, str):
        if schema in within:
            raise ValueError(f"type {schema[:100]} is within itself")
    elif isinstance(schema, dict):
        name = str(schema.get("name", ""))
        full = f"{schema['namespace']}.{name}" if schema.get("namespace") else name
        below = (*within, name, full, full.rpartition(".")[2])
        kind = schema.get("type")
        if kind == "array" and _takes_nothing(schema.get("items")):
            raise ValueError("it has arrays whose items take no octet")
        parts = [schema.get("items"), schema.get("values")]
        parts += [each.get("type") for each in schema.get("fields", ()) if isinstance(each, dict)]
        if isinstance(kind, dict | list):
            parts.append(kind)
        for part in parts:
            if part is not None:
                _check(part, below)


def _takes_nothing(schema: Any) -> bool:
    """Whether a value of a type may take no octet; a name that is not known here may."""
    if isinstance(schema, str):
        return schema not in _TAKES
    if isinstance(schema, list):
        return False  # a union says which of its types it is
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
