"""Write the tables of states into docs/states.md: ``python scripts/states.py``.

``--check`` only compares, and fails if the page is out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from dafka_core.protocol.store_directory import DISCOVERY_TABLE
from dafka_kafka.errors import KafkaError
from dafka_kafka.groups.group import GROUP_TABLE
from dafka_kafka.partition_registry import LEASE_TABLE
from scripts.generated import replaced, write

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"


def label(state: Enum) -> str:
    """Return a state's name in prose."""
    return state.name.lower().replace("_", " ")


TABLES: dict[str, Mapping[Any, Mapping[str, tuple[str, str | KafkaError]]]] = {
    "discovery states": {
        state: {event: (label(then), "") for event, then in reactions.items()}
        for state, reactions in DISCOVERY_TABLE.items()
    },
    "group states": GROUP_TABLE,
    "lease states": {
        state: {event: (label(then), action) for event, (then, action) in reactions.items()}
        for state, reactions in LEASE_TABLE.items()
    },
}


def markdown(table: Mapping[Any, Mapping[str, tuple[str, str | KafkaError]]]) -> str:
    """Return a table of the states, and one of the events with the reactions of the states."""
    events = list(dict.fromkeys(event for reactions in table.values() for event in reactions))
    rows = [["state", "meaning"], ["---"] * 2]
    rows += [[label(state), state.value] for state in table]
    rows += [[], ["event", "state: action → next states"], ["---"] * 2]
    for event in events:
        states: dict[str, list[str]] = {}
        for state, reactions in table.items():
            if reaction := cell(state, *reactions.get(event, (label(state), ""))):
                states.setdefault(reaction, []).append(label(state))
        found = (f"*{', '.join(names)}*: {reaction}" for reaction, names in states.items())
        rows.append([event, "; ".join(found)])
    return "\n".join(f"| {' | '.join(row)} |" if row else "" for row in rows)


def cell(state: Enum, then: str, action: str | KafkaError) -> str:
    """Return the action, if any, and the next states, if the state may change."""
    parts = [shown(action)] if action else []
    return " → ".join(parts if then == label(state) else [*parts, then])


def shown(action: str | KafkaError) -> str:
    """Return the action, or the name of the error in the answer."""
    return f"`{action.name}`" if isinstance(action, KafkaError) else action


def updated(text: str) -> str:
    """Return the page's text with the current tables."""
    for name, table in TABLES.items():
        text = replaced(text, f"<!-- generated: {name} -->", markdown(table))
    return text


def main() -> None:
    """Update the page, or check it."""
    write(PAGE, updated(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
