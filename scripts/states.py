"""Writes the tables of states into docs/states.md: ``python scripts/states.py``.

``--check`` only compares, and fails if the page is behind.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dafka_core.protocol.partition_states import FETCH_TABLE, STORE_TABLE, Reaction, Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
TABLES = {"store states": STORE_TABLE, "consumer states": FETCH_TABLE}


def markdown(table: Table) -> str:
    """A row for each state; for each event what is done, and which states may follow."""
    events = list(dict.fromkeys(event for reactions in table.values() for event in reactions))
    rows = [["state", "meaning", *events], ["---"] * (len(events) + 2)]
    for state, reactions in table.items():
        found = [reactions.get(event, Reaction("—")) for event in events]
        cells = [f"{action} → {then}".removeprefix(" → ") for then, action in found]
        rows.append([state.label, state.value, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def updated(text: str) -> str:
    """The page's text with the tables as the code has them now.

    Raises:
        ValueError: the text has not got exactly one place for each table.
    """
    for name, table in TABLES.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
        text, count = pattern.subn(f"{begin}\n\n{markdown(table)}\n\n{end}", text)
        if count != 1:
            raise ValueError(f"the page must have {begin!r} once, and has it {count} times")
    return text


def main() -> None:
    """Updates the page, or says that it needs to be."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(updated(text), encoding="utf-8")
    elif updated(text) != text:
        sys.exit("docs/states.md is behind the code: run python scripts/states.py")


if __name__ == "__main__":
    main()
