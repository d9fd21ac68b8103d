"""Where records are copied from and to, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.errors import ConfigError
from dafka_core.names import escape
from dafka_core.near_names import what_there_is

PARQUET, JSON, CSV = "parquet", "json", "csv"

_SUFFIXES: Final = {
    ".parquet": PARQUET,
    ".jsonl": JSON,
    ".json": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
}


class Place(NamedTuple):
    """Where records are copied from or to: a file of a kind, or a topic, whose kind is empty."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """A file by its suffix or as ``file:PATH``, and else a topic, or as ``topic:NAME``."""
        prefix, colon, rest = text.partition(":")
        if colon and prefix == "topic":
            return cls("", rest)
        is_file = colon and prefix == "file"
        name = rest if is_file else text
        kind = _SUFFIXES.get(Path(name).suffix.lower(), "")
        if not kind and is_file:
            near = what_there_is(Path(name).suffix, _SUFFIXES, "suffixes")
            raise ConfigError("file", escape(name), f"its suffix says no form; {near}")
        return cls(kind, name)
