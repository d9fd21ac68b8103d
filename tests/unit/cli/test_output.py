"""Output for programs and for people; one log line an event, which repeats itself seldom."""

import contextlib
import json
import logging
import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.cli import output
from dafka_core.cli.output import (
    MAX_KEPT,
    REPEAT_S,
    LogOptions,
    Repeats,
    begin,
    configure,
    log_message,
)
from dafka_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handler = output._Handler()
    monkeypatch.setattr(output, "_handler", handler)
    begin()
    yield
    logging.getLogger().removeHandler(handler)
    logging.getLogger("dafka").setLevel(logging.NOTSET)


def logged(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_without_options_warnings_are_lines_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("dafka.store")
    log.info("not this")
    log.warning("%(what)s is\nslow", {"what": "it"}, extra={"event": "disk_slow"})
    (line,) = logged(capsys)
    time, level, name, text = line.split(" ", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert (level, name) == ("WARNING", "dafka.store:")
    assert text == r"it is\x0aslow"


def test_programs_get_an_object_a_line_with_facts(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogOptions.build({"log_format": "json", "log_level": "info"}))
    log = logging.getLogger("dafka.mesh")
    log.info("peer %(peer)s has come", {"peer": "P"}, extra={"event": "peer_came"})
    log.warning("plain %d", 5)
    try:
        raise ValueError("why\nnot")
    except ValueError:
        log.exception("failed")
    first, second, third = map(json.loads, logged(capsys))
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "dafka.mesh",
        "event": "peer_came",
        "message": "peer P has come",
        "facts": {"peer": "P"},
    }
    assert (second["message"], second["event"]) == ("plain 5", "test_output")
    assert "ValueError" in third["exception"]


def test_what_a_command_says_itself_is_an_object_there_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(LogOptions.build({"log_format": "json"}))
    for _ in range(2):
        output.info("store S in d; Ctrl-C stops it")
    output.error("no tower")
    said = [json.loads(line) for line in logged(capsys)]
    assert [each["level"] for each in said] == ["info", "info", "error"]
    assert said[2]["message"] == "no tower"
    configure(LogOptions())
    assert not log_message(logging.INFO, "x")
    output.info("plain")
    assert logged(capsys) == ["plain"]


def test_the_same_sentence_is_said_once_a_minute_with_how_often_it_was_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])  # type: ignore[attr-defined]
    log = logging.getLogger("dafka.store")
    for _ in range(5):
        log.error("block %d is damaged", 7)
    log.error("block %d is damaged", 8)
    clock[0] += REPEAT_S
    log.error("block %d is damaged", 7)
    first, other, again = logged(capsys)
    assert first.endswith("block 7 is damaged")
    assert other.endswith("block 8 is damaged")
    assert again.endswith("block 7 is damaged (and 4 suppressed repetitions)")


def test_no_number_of_sentences_takes_more_than_some_memory() -> None:
    repeats = Repeats()
    for number in range(3 * MAX_KEPT):
        assert repeats.count(0.0, "dafka", f"sentence {number}") == 0
    assert len(repeats._logged) == MAX_KEPT


def test_a_defect_in_what_is_told_and_a_stream_that_is_gone_end_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("dafka.store").warning("%d", "no number")
    assert logged(capsys) == []
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        logging.getLogger("dafka.store").warning("lost")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        full.buffer.raw.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["log_level", "log_format"])
def test_what_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="must be one of"):
        LogOptions.build({name: "loud"})


def test_each_event_has_its_row_in_the_page() -> None:
    used = set()
    for path in (ROOT / "dafka_core").rglob("*.py"):
        text = path.read_text("utf-8")
        used |= set(re.findall(r'"event": "(\w+)"|\bevent ?= ?"(\w+)"|_log\(\s*"(\w+)"', text))
    _, _, logs = (ROOT / "docs/metrics.md").read_text("utf-8").partition("## Logs\n")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", logs, re.M)
    assert {event for pair in used for event in pair if event} == set(
        re.findall(r"\w+", " ".join(rows))
    )


def test_in_an_application_a_command_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_handler", output._Handler())  # one that is not in use
    logging.getLogger("dafka").setLevel(logging.NOTSET)
    configure(LogOptions.build({"log_level": "error"}))
    assert logging.getLogger("dafka").level == logging.NOTSET


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


def test_a_table_that_is_wider_than_the_terminal_cuts_no_name_and_no_number() -> None:
    row = ("t" * 20, "A" * 32, 1_234_567, "see " + "w" * 50)
    with terminal() as lines:
        output.table(("topic", "partition", "records", "why"), [row], wrapped=("why",))
    shown = " ".join(lines[1:]).split()
    assert shown[:4] == [*map(str, row[:3]), "see"]
    assert "".join(shown[4:]) == "w" * 50
