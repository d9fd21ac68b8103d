"""docs/wire.md names every command as it is on the wire."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import Message
from tests.unit.protocol.strategies import COMMANDS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "wire.md").read_text()
NAMES = {"RECORD-MESSAGE": "RECORD", "RECORD-BATCH-MESSAGE": "RECORD-BATCH"}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_command_is_listed_with_its_identifier(kind: type[Message]) -> None:
    name = re.sub("(?<=.)([A-Z])", r"-\1", kind.__name__).upper()
    identifier = subscription(kind).decode()
    row = f"| {NAMES.get(name, name)} | `{identifier}` {ord(identifier):X} |"
    assert PAGE.count(row) == 1, row


def test_no_identifier_is_listed_twice() -> None:
    listed = re.findall(r"^\| [A-Z-]+ \| `([A-Za-z])` ([0-9A-F]{2}) \|", PAGE, re.MULTILINE)
    assert len(listed) == len(set(listed)) == len(COMMANDS)
    assert all(ord(letter) == int(octet, 16) for letter, octet in listed)
