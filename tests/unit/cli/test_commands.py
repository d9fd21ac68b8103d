"""The table of commands, and what ``dafka --help`` imports."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

from dafka_core.cli.app import app
from dafka_core.cli.commands import SECTIONS, Command
from dafka_core.cli.flags import settings_of
from tests.pages import ROOT

SLOW = {
    *("importlib.metadata", "lmdb", "msgspec", "numpy", "pyarrow", "pydantic"),
    *("rich", "starlette", "zmq"),
}
"""Libraries that take long to import; the help of a command needs none."""

MOST_MODULES = 300


def rows(commands: Any, prefix: str = "") -> Iterator[tuple[str, Command]]:
    for each in commands:
        yield f"{prefix}{each.name}", each
        yield from rows(each.commands, f"{prefix}{each.name} ")


ROWS = dict(rows(app.row.commands))


@pytest.mark.parametrize("name", ROWS)
def test_a_summary_is_the_first_sentence_of_the_commands_help(name: str) -> None:
    loaded = ROWS[name].load()
    assert inspect.cleandoc(loaded.help or "").split("\n\n")[0] == ROWS[name].summary
    assert ROWS[name].section in (SECTIONS if " " not in name else "")


def test_each_command_has_a_transcript() -> None:
    """Another test has the lines of all pages parsed."""
    page = ROOT.joinpath("docs", "commands.md").read_text(encoding="utf-8")
    steps = "\n".join(re.findall(r"^\$ (.*)$", page, re.MULTILINE))
    shown = re.findall(r"\bdafka ([^|;&\n]+)", steps)
    assert [name for name in ROWS if not any(each.startswith(name) for each in shown)] == []


@pytest.mark.parametrize("name", ["produce", "partitions"])
def test_arguments_are_listed_once(name: str) -> None:
    command = ROWS[name].load()
    shown = command.get_help(click.Context(command))
    assert re.findall("(?m)^.*rguments:$", shown) == ["Positional arguments:"]


def test_the_directory_of_an_archive_is_not_the_one_of_a_store_in_a_file() -> None:
    assert "dir" in settings_of(ROWS["store"].load())
    assert {"dir", "archive_directory"}.isdisjoint(settings_of(ROWS["archive"].load()))


@pytest.mark.parametrize("words", [["--help"], ["topics", "--help"]])
def test_help_imports_little(words: list[str]) -> None:
    program = (
        "import sys; sys.argv[0] = 'dafka'\n"
        "from dafka_core.cli import main\n"
        "try: main()\n"
        "except SystemExit: print('IMPORTED', *sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, check=True, text=True
    )
    shown, _, imported = run.stdout.partition("IMPORTED")
    assert "Usage: dafka" in shown
    assert not SLOW.intersection(imported.split())
    assert len(imported.split()) < MOST_MODULES
