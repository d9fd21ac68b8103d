"""What docs/python.md says of classes and functions: their docstrings, as Markdown.

``python scripts/options.py`` writes it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import dafka_core
import dafka_spark
from dafka_core import errors

SHOWN: dict[str, tuple[str, ...]] = {
    "Producer": ("publish", "publish_many", "flush", "close", "next_offset", "acknowledged"),
    "Consumer": (
        *("subscribe", "unsubscribe", "subscription", "poll", "batches", "seek", "positions"),
        *("skipped", "close"),
    ),
    "Reader": ("partitions", "read", "times", "stores", "missing_stores", "close"),
    "Record": ("timestamp",),
    "RecordBatch": ("count", "end", "offsets", "records"),
    "PartitionInfo": (),
    "EmbeddedCluster": (
        *("tower", "locations", "bootstrap_servers", "kill_store", "start_store", "paused_store"),
        *("kill_tower", "start_tower", "close"),
    ),
    "Tower": ("announce", "wait", "close"),
    "Store": ("announce", "wait", "close"),
    "MetricsEndpoint": ("url", "add", "close"),
    "serve_metrics": (),
}
"""What applications use of ``dafka_core``, with their methods and properties."""

SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields)\b([^:]*):$")
ENTRY = re.compile(r"^([\w*][\w*, ]*): (.*)$")


def text() -> str:
    """The page's part that is made from docstrings."""
    parts = ["## `dafka_core`"]
    for name, members in SHOWN.items():
        shown = getattr(dafka_core, name)
        parts += [f"### `{name}`", f"`{_call(name, shown)}`", markdown(shown)]
        parts += [_member(shown, each) for each in members]
    parts += [
        "### Errors",
        "Those with `errors.` before them are in `dafka_core.errors`, the others in `dafka_core`.",
        _errors(),
        "## `dafka_spark`",
    ]
    for name in dafka_spark.__all__:
        shown = getattr(dafka_spark, name)
        parts += [f"### `{name}`", markdown(shown)]
        if not inspect.isclass(shown):
            parts.insert(-1, f"`{_call(name, shown)}`")
    return "\n\n".join(parts)


def markdown(shown: Any) -> str:
    """A docstring: its sections become lists, its literals code."""
    lines = (inspect.getdoc(shown) or "").replace("``", "`").splitlines()
    done: list[str] = []
    depth: int | None = None  # of the entries of the section that this is
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if section := SECTION.match(line):
            done.append(f"*{section[1].replace('Args', 'Arguments')}{section[2]}*\n")
            depth = 4
        elif depth is None or (line and not indent):
            depth = None
            done.append(line)
        elif (entry := ENTRY.match(line.strip())) and indent == depth:
            done.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            done.append(f"  {line.strip()}" if line else "")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(done)).strip()


def _member(shown: Any, name: str) -> str:
    member = inspect.getattr_static(shown, name)
    heading = f"#### `{shown.__name__}.{name}`"
    if isinstance(member, property):
        return f"{heading}\n\n{markdown(member.fget)}"
    return f"{heading}\n\n`{_call(name, getattr(shown, name))}`\n\n{markdown(member)}"


def _call(name: str, shown: Any) -> str:
    """How it is called, without types: these are in the code, for editors."""
    signature = inspect.signature(shown)
    parameters = [
        each.replace(annotation=each.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    bare = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return f"{name}{bare}"


def _errors() -> str:
    rows = ["| error | is a | says |", "|---|---|---|"]
    known = vars(errors) | {name: getattr(dafka_core, name) for name in dafka_core.__all__}
    for name, error in sorted(known.items()):
        if name[0] == "_" or not (inspect.isclass(error) and issubclass(error, Exception)):
            continue
        base = next(each for each in error.__mro__[1:] if each.__name__[0] != "_")
        first = markdown(error).partition("\n\n")[0].replace("\n", " ")
        module = "" if name in dafka_core.__all__ else "errors."
        rows.append(f"| `{module}{name}` | `{base.__name__}` | {first} |")
    return "\n".join(rows)
