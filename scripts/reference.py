"""The reference in docs/python.md, made from docstrings by ``python scripts/options.py``."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import dafka_core
import dafka_spark
from dafka_core import errors

SHOWN: dict[str, tuple[str, ...]] = {
    "Producer": ("publish", "publish_many", "flush", "close", "next_offset", "acknowledged"),
    "Consumer": (
        *("subscribe", "unsubscribe", "poll", "batches", "seek", "positions"),
        *("skipped", "close"),
    ),
    "Reader": ("partitions", "read", "times", "missing_stores"),
    "Record": (),
    "RecordBatch": ("records",),
    "EmbeddedCluster": (
        *("tower", "locations", "bootstrap_servers", "kill_store", "start_store", "paused_store"),
        *("kill_tower", "start_tower"),
    ),
    "Tower": ("wait",),
    "Store": ("announce", "wait", "close"),
}
"""The public interface of ``dafka_core``, with the methods and properties to describe."""

SECTION = re.compile(r"^(Args|Attributes|Raises)[^:\n]*:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}([\w*][\w*, ]*): ", re.MULTILINE)


def text() -> str:
    """Return the page's generated part."""
    parts = ["## `dafka_core`"]
    for name, members in SHOWN.items():
        shown = getattr(dafka_core, name)
        parts += [f"### `{_call(name, shown)}`", markdown(shown)]
        if members:
            parts += ["Members:", "\n".join(_member(shown, member) for member in members)]
    parts += ["## `dafka_spark`", "[spark.md](spark.md) has examples."]
    parts.append("\n".join(_member(dafka_spark, name) for name in dafka_spark.__all__))
    parts += ["## Errors", _errors(shown_in="\n".join(parts))]
    return "\n\n".join(parts)


def _member(shown: Any, name: str) -> str:
    """Return a line: the call of a method or the name of a property, and its first paragraph."""
    value = inspect.getattr_static(shown, name)
    called = name if inspect.isclass(value) or isinstance(value, property) else _call(name, value)
    first = (inspect.getdoc(value) or "").replace("``", "`").partition("\n\n")[0]
    return f"- `{called}`: {' '.join(first.split())}"


def markdown(shown: Any) -> str:
    """Return a docstring with a list of its arguments, and code for its literals.

    Raised errors have a table, and the attributes of nodes a page (docs/architecture.md).
    """
    lines = (inspect.getdoc(shown) or "").replace("``", "`")
    left_out = ("Raises", "Attributes") if "announce" in vars(shown) else ("Raises",)

    def section(found: re.Match[str]) -> str:
        kind, entries = found.groups()
        if kind in left_out:
            return ""
        others = re.sub(r"^ {4}options: see .*\n?", "", entries, flags=re.MULTILINE)
        return textwrap.dedent(ENTRY.sub(r"    - `\1`: ", others)) + "\n"

    return re.sub(r"\n{3,}", "\n\n", SECTION.sub(section, lines)).strip()


def _call(name: str, shown: Any) -> str:
    """Return the signature without types, which editors show."""
    signature = inspect.signature(shown)
    parameters = [
        each.replace(annotation=each.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    bare = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return f"{name}{bare}"


def _errors(shown_in: str) -> str:
    """Return a table of the errors that applications import, or that the text names."""
    rows = ["| error | meaning |", "|---|---|"]
    known = vars(errors) | {name: getattr(dafka_core, name) for name in dafka_core.__all__}
    for name, error in sorted(known.items()):
        is_public = name in dafka_core.__all__ or f"`{name}`" in shown_in
        if not (is_public and inspect.isclass(error) and issubclass(error, Exception)):
            continue
        first = markdown(error).partition("\n\n")[0].replace("\n", " ")
        module = "" if name in dafka_core.__all__ else "errors."
        rows.append(f"| `{module}{name}` | {first} |")
    return "\n".join(rows)
