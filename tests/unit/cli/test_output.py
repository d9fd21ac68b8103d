"""Output for programs and for people."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
from collections.abc import Iterator

import pytest

from dafka_core.cli import output

NAMES, ROWS = ("topic", "records"), [("t", 12_345), ("u", 7)]


@contextlib.contextmanager
def terminal() -> Iterator[list[str]]:
    """A terminal of 40 columns in the place of both outputs; the lines it shows, at the end."""
    lines: list[str] = []
    shown, written = pty.openpty()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "40")
        patched.setenv("TERM", "dumb")  # no colours
        with os.fdopen(written, "w") as stream:
            patched.setattr(sys, "stdout", stream)
            patched.setattr(sys, "stderr", stream)
            yield lines
    with os.fdopen(shown, "rb", buffering=0) as screen, contextlib.suppress(OSError):
        while text := screen.read(65_536):  # fails at the end: all writers have closed
            lines += text.decode().splitlines()


def test_a_node_that_serves_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.ready(tower="127.0.0.1:1:2", dir="a\nb")
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("READY ")
    assert json.loads(line.removeprefix("READY ")) == {"tower": "127.0.0.1:1:2", "dir": "a\nb"}


def test_programs_get_columns_or_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.table(NAMES, ROWS)
    assert capsys.readouterr().out == "topic  records\nt      12345\nu      7\n"
    monkeypatch.setattr(output.settings, "headings", False)
    output.table(NAMES, ROWS)
    assert capsys.readouterr().out == "t  12345\nu  7\n"
    monkeypatch.setattr(output.settings, "json", True)
    output.table(NAMES, ROWS)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{"topic": "t", "records": 12_345}, {"topic": "u", "records": 7}]
    for as_json in (True, False):
        monkeypatch.setattr(output.settings, "json", as_json)
        output.table(NAMES, [])
        assert capsys.readouterr().out == ""


def test_people_get_a_table_with_its_heads() -> None:
    with terminal() as lines:
        output.table(NAMES, ROWS)
    assert [line.split() for line in lines] == [["topic", "records"], ["t", "12345"], ["u", "7"]]


@pytest.mark.parametrize("topic", ["[bold]u", "[/bold]", ":smile:"])
def test_a_name_in_a_table_is_as_it_is(topic: str) -> None:
    with terminal() as lines:
        output.table(NAMES, [(topic, 7)])
    assert lines[1].split() == [topic, "7"]


def test_json_is_json_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.settings, "json", True)
    with terminal() as lines:
        output.table(NAMES, ROWS[:1])
    assert [json.loads(line) for line in lines] == [{"topic": "t", "records": 12_345}]


def test_what_people_are_told_is_not_among_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    output.info("topic t, from latest")
    output.error("no tower answered")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "topic t, from latest\ndafka: no tower answered\n"


def test_a_sentence_is_one_line_on_a_terminal_and_its_words_are_as_they_are() -> None:
    sentence = "option 'x' = '[red]y[/red]': must be z " * 4
    with terminal() as lines:
        output.error(sentence.strip())
        output.info("[dim]t")
    assert lines == [f"dafka: {sentence.strip()}", "[dim]t"]
