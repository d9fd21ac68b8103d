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
    "PartitionInfo": (),
    "EmbeddedCluster": (
        *("tower", "locations", "bootstrap_servers", "kill_store", "start_store", "paused_store"),
        *("kill_tower", "start_tower"),
    ),
    "Tower": ("wait",),
    "Store": ("announce", "wait", "close"),
    "serve_metrics": (),
}
"""The public interface of ``dafka_core``, with the methods and properties to describe."""

SECTION = re.compile(r"^(Args|Attributes|Raises)([^:\n]*):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}([\w*][\w*, ]*): ", re.MULTILINE)


def text() -> str:
    """Return the page's generated part."""
    parts = ["## `dafka_core`"]
    for name, members in SHOWN.items():
        shown = getattr(dafka_core, name)
        parts += [f"### `{_call(name, shown)}`", markdown(shown)]
        for member in members:
            value = inspect.getattr_static(shown, member)
            if isinstance(value, property):
                parts += [f"#### `{name}.{member}`", markdown(value.fget)]
            else:
                parts += [f"#### `{name}.{_call(member, value)}`", markdown(value)]
    parts.append("## `dafka_spark`")
    for name in dafka_spark.__all__:
        shown = getattr(dafka_spark, name)
        called = name if inspect.isclass(shown) else _call(name, shown)
        parts += [f"### `{called}`", markdown(shown)]
    parts += ["## Errors", _errors(shown_in="\n".join(parts))]
    return "\n\n".join(parts)


def markdown(shown: Any) -> str:
    """Return a docstring with lists for its sections, and code for its literals."""
    lines = (inspect.getdoc(shown) or "").replace("``", "`")
    return re.sub(r"\n{3,}", "\n\n", SECTION.sub(_section, lines)).strip()


def _section(section: re.Match[str]) -> str:
    """Return a list; of errors only the names, since the table has their meanings."""
    kind, condition, entries = section.groups()
    if kind == "Raises":
        names = ", ".join(f"`{each.replace(', ', '`, `')}`" for each in ENTRY.findall(entries))
        return f"Raises{condition}: {names}.\n\n"
    others = re.sub(r"^ {4}options: see .*\n?", "", entries, flags=re.MULTILINE)
    return textwrap.dedent(ENTRY.sub(r"    - `\1`: ", others)) + "\n"


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
    rows = ["| error | is a | meaning |", "|---|---|---|"]
    known = vars(errors) | {name: getattr(dafka_core, name) for name in dafka_core.__all__}
    for name, error in sorted(known.items()):
        is_public = name in dafka_core.__all__ or f"`{name}`" in shown_in
        if not (is_public and inspect.isclass(error) and issubclass(error, Exception)):
            continue
        base = next(each for each in error.__mro__[1:] if each.__name__[0] != "_")
        first = markdown(error).partition("\n\n")[0].replace("\n", " ")
        module = "" if name in dafka_core.__all__ else "errors."
        rows.append(f"| `{module}{name}` | `{base.__name__}` | {first} |")
    return "\n".join(rows)
