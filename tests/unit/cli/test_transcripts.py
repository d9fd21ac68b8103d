"""Commands and flags in docs/commands.md exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from dafka_core.cli.app import app

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs"
STEPS = [
    line.removeprefix("$ ")
    for line in (DOCS / "commands.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("$ ")
]


def commands() -> dict[str, set[str]]:
    """Each command, and its flags."""
    found: dict[str, set[str]] = {}

    def walk(group: click.Command, prefix: str) -> None:
        if not isinstance(group, click.Group):
            return
        within = click.Context(group)
        for name in group.list_commands(within):
            each = group.get_command(within, name)
            assert each is not None
            found[prefix + name] = {
                flag for option in each.params for flag in (*option.opts, *option.secondary_opts)
            }
            walk(each, f"{prefix}{name} ")

    walk(app, "")
    return found


def called(step: str) -> list[list[str]]:
    """The words behind each ``dafka`` of a line for a shell."""
    words = shlex.split(step.replace(";", " ; "))
    calls: list[list[str]] = []
    for word in words:
        if word == "dafka" or word in ("|", "&&", ";"):
            calls.append([])
        elif calls:
            calls[-1].append(word)
    return [each for each in calls if each]


def test_each_command_has_a_transcript() -> None:
    shown = [" ".join(call) for step in STEPS for call in called(step)]
    missing = [name for name in commands() if not any(each.startswith(name) for each in shown)]
    assert missing == []


@pytest.mark.parametrize("step", STEPS)
def test_a_transcripts_flags_are_those_of_its_command(step: str) -> None:
    known = commands()
    for call in called(step):
        name = next(
            (" ".join(call[:count]) for count in (2, 1) if " ".join(call[:count]) in known), None
        )
        if name in (None, "job"):
            continue  # another program of the line, or the version; a job has flags of its own
        flags = {word for word in call if re.match("--[a-z]", word)}
        wrong = flags - known[name]
        assert name == "config" or wrong == ({"--akcs"} if "--akcs" in call else set())
