"""Where records are copied from and to, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.errors import ConfigError
from dafka_core.names import escape
from dafka_core.near_names import nearest_name, what_there_is

PARQUET, JSON, CSV = "parquet", "json", "csv"

_SUFFIXES: Final = {
    ".parquet": PARQUET,
    ".jsonl": JSON,
    ".json": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
}


_OF_FILES: Final = (
    *(".arrow", ".avro", ".feather", ".html", ".orc", ".tsv", ".txt", ".xls", ".xlsx", ".xml"),
    *(".bz2", ".gz", ".tar", ".xz", ".yaml", ".zip", ".zst"),
)
"""No topic is meant by these, as a rule; names of topics have dots, too."""


class Place(NamedTuple):
    """Where records are copied from or to: a file of a kind, or a topic, whose kind is empty."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """A file by its suffix or as ``file:PATH``, and else a topic, or as ``topic:NAME``.

        Raises:
            ConfigError: it looks like a file, and has no form that is known.
        """
        prefix, colon, rest = text.partition(":")
        if colon and prefix == "topic":
            return cls("", rest)
        is_file = colon and prefix == "file"
        name = rest if is_file else text
        kind = _SUFFIXES.get(Path(name).suffix.lower(), "")
        if not kind and is_file:
            near = what_there_is(Path(name).suffix, _SUFFIXES, "suffixes")
            raise ConfigError("file", escape(name), f"its suffix says no form; {near}")
        suffix = Path(name).suffix.lower()
        seems_file = name == "-" or "/" in name or suffix in _OF_FILES
        if not kind and (seems_file or nearest_name(suffix, _SUFFIXES)):
            why = f"looks like a file, and none of a form that is copied ({', '.join(_SUFFIXES)})"
            raise ConfigError("place", escape(text), f"{why}; topic:NAME is a topic")
        return cls(kind, name)
