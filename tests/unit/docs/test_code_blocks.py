"""Each block of code of the pages is tried, here or by another test, or is one of a few exempt."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dafka_core.cli import configuration
from dafka_core.cli.app import app
from dafka_core.protocol.codec import encode
from dafka_core.protocol.messages import RecordMessage
from tests.pages import PAGES, ROOT, Block, blocks
from tests.unit.protocol.vectors import VECTORS

README = "tests/spark/test_readme.py::test_the_"
PROGRAM = f"{README}program_prints_the_readmes_output_and_leaves_no_files"
START = "tests/spark/start/test_first_minutes.py::test_the_first_ten_minutes_print_the_pages_output"
FLIGHT = "tests/integration/flight/test_documentation.py::test_the_examples_of_requests_are_taken"
HERE = "tests/unit/docs/test_code_blocks.py::test_"
SHELL = f"{HERE}a_line_for_a_shell_is_one_that_its_program_takes"
OBJECT = f"{HERE}an_object_of_a_page_can_be_read"

TRIED = {
    "README.md | One program | *": PROGRAM,
    "docs/retention.md | Both as one topic | python": f"{README}example_of_an_archive",
    "docs/retention.md | What is in the directory | sql": f"{README}example_of_an_archive",
    "docs/commands.md | * | toml": f"{HERE}a_settings_file_of_a_page_is_one_that_dafka_takes",
    "docs/delivery.md | What the sink guarantees | python": f"{README}example_of_delivery",
    "docs/architecture.md | * | *": (
        "tests/integration/testing/test_topic_echo.py::"
        "test_the_extension_of_the_page_copies_a_topic_and_is_measured"
    ),
    "docs/flight.md | Stores over Arrow Flight | python": f"{README}example_of_flight",
    "docs/flight.md | * | json": FLIGHT,
    "docs/from_kafka.md | A job, ported | diff": f"{README}example_of_a_ported_job",
    "docs/metrics.md | Switching it on | python": f"{README}example_without_spark",
    "docs/metrics.md | * | json": OBJECT,
    "docs/metrics.md | * | yaml": OBJECT,
    "docs/python.md | A test | python": f"{README}example_of_a_test",
    "docs/python.md | [!A]* | python": f"{README}example_without_spark",
    "docs/testing.md | Scripts | python": (
        "tests/simulation/scripts/test_stores.py::"
        "test_a_store_that_comes_late_fetches_from_the_producer"
    ),
    "docs/guarantees.md | What a query reads | python": f"{README}example_of_the_source",
    "docs/spark.md | Reading | python": f"{README}example_of_reading",
    "docs/spark.md | One `load()` for each query | python": f"{README}example_of_one_load",
    "docs/spark.md | Output modes | python": f"{README}example_of_output_modes",
    "docs/spark.md | Writing | python": f"{README}example_of_writing",
    "docs/spark.md | From threads | python": f"{README}example_of_threads",
    "docs/spark.md | SQL | *": f"{README}example_of_sql",
    "docs/spark.md | Declarative pipelines | python": f"{README}example_of_a_pipeline",
    "docs/start.md | * | python": START,
    "docs/start.md | * | console": START,
    "docs/spark.md | Typed values | python": f"{README}example_of_typed_values",
    "docs/wire.md | [!F]* | ": f"{HERE}frames_of_a_page_are_those_that_nodes_send",
    "* | sh": SHELL,
}
"""The test of each block, by page, heading and language."""

EXEMPT = {
    "README.md | dafka-spark | ": "a picture",
    "docs/retention.md | What is in the directory | ": "names of files, as a pattern",
    "docs/commands.md | * | text": "what commands printed once; test_transcripts.py runs some",
    "docs/console.md | In the terminal: `dafka top` | text": "a cluster of one moment",
    "docs/guarantees.md | Whose records a partition has | ": "a picture",
    "docs/jobs.md | * | text": "what jobs printed once",
    "docs/kafka_clients.md | Who is let in | properties": "settings of any client's",
    "docs/metrics.md | * | console": "what commands print while they run",
    "docs/retention.md | Readers of deleted records | ": "a sentence of a log",
    "docs/security.md | Who may do what | text": "a file that `dafka keys new` makes",
    "docs/wire.md | Frames | ": "how frames are laid out, as a pattern",
    "docs/wire.md | The largest record | ": "how a frame is laid out, as a pattern",
}
"""Blocks of which nothing is run but the commands behind a dollar sign, and why."""

PROGRAMS = {
    *("cat", "cd", "cp", "docker", "echo", "export", "grep", "head", "install", "jupyter"),
    *("kubectl", "pip", "printf", "pytest", "python", "python3.11", "rm", "seq", "spark-submit"),
    *("systemctl", "systemd-sysusers", "tail", "tar"),
}
"""Other programs in shell lines; the files that they name must exist."""

BLOCKS = list(blocks())
DAFKA = app


def name_of(block: Block) -> str:
    return f"{block.page} | {block.heading} | {block.language}"


def is_of(block: Block, patterns: dict[str, str]) -> bool:
    return any(fnmatchcase(name_of(block), pattern) for pattern in patterns)


def test_each_block_is_tried_or_exempt() -> None:
    unknown = {name_of(each) for each in BLOCKS if not is_of(each, TRIED | EXEMPT)}
    assert unknown == set()
    names = [*map(name_of, BLOCKS)]
    idle = [each for each in TRIED | EXEMPT if not any(fnmatchcase(name, each) for name in names)]
    assert idle == []


@pytest.mark.parametrize("test", sorted({*TRIED.values()}))
def test_a_test_that_tries_a_block_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without assignments before it and where it goes to."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.wordchars += ":,@+%"
    command: list[str] = []
    is_target = False
    for word in [*words, ";"]:
        if word in {";", "|", "||", "&", "&&"}:
            if command:
                yield command
            command, is_target = [], False
        elif word == ">" or is_target:
            is_target = word == ">"
            if is_target and command[-1:] == ["2"]:
                command.pop()
        elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
            command.append(word)


def lines_for_a_shell() -> Iterator[Any]:
    for block in BLOCKS:
        lines = block.text.splitlines()
        if block.language != "sh":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            if line.strip() and "--akcs" not in line:  # shows the error of an unknown flag
                yield pytest.param(line, id=f"{block.page}: {line}")


def take(command: Any, name: str, arguments: list[str]) -> None:
    """Has the command, or the one of its group that is named, parse arguments."""
    is_group, within = isinstance(command, click.Group), click.Context(command)
    if is_group and arguments and (named := command.get_command(within, arguments[0])):
        take(named, f"{name} {arguments[0]}", arguments[1:])
    else:
        assert not is_group or command.invoke_without_command, name
        command.make_context(name, list(arguments))


@pytest.mark.parametrize("line", [*lines_for_a_shell()])
def test_a_line_for_a_shell_is_one_that_its_program_takes(line: str) -> None:
    commands = [*simple_commands(line)]
    assert commands
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for program, *words in commands:
        if program == "dafka":
            if words != ["--version"]:
                take(DAFKA, "dafka", words)
        elif program == "make":
            for word in words:
                of = f"$({word.partition('=')[0]})" if "=" in word else f"\n{word}:"
                assert of in makefile, word
        else:
            assert Path(program).name in PROGRAMS or program in (".", "export")
            named = [word for word in words if re.match(r"(deploy|jobs|scripts|tests)/", word)]
            assert [word for word in named if not [*ROOT.glob(word)]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_existing_targets(page: Path) -> None:
    """Another test builds the site, with their links."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def test_an_object_of_a_page_can_be_read() -> None:
    [log] = [json.loads(each.text) for each in BLOCKS if each[::2] == ("docs/metrics.md", "json")]
    assert list(log) == ["time", "level", "logger", "event", "message", "facts"]
    scrapes = [yaml.safe_load(each.text) for each in BLOCKS if each.language == "yaml"]
    plain, locked = (each["scrape_configs"][0] for each in scrapes)
    assert plain["static_configs"][0]["targets"] == ["127.0.0.1:9108"]
    assert [*locked["authorization"]] == ["credentials_file"]  # its type is Bearer without a word


def test_a_settings_file_of_a_page_is_one_that_dafka_takes(tmp_path: Path) -> None:
    known = {name: row.load for name, row in DAFKA.row.full_names().items()}
    [text] = [each.text for each in BLOCKS if each[::2] == ("docs/commands.md", "toml")]
    file = tmp_path / "dafka.toml"
    file.write_text(text, encoding="utf-8")
    read = configuration.read(str(file), None, known)
    assert read.profile == "home"
    found = read.find("acks", "produce")
    assert found is not None
    assert found.value == "2"


def test_frames_of_a_page_are_those_that_nodes_send() -> None:
    one = RecordMessage("hello", "P1", 7, b"one")
    messages = [vector.frames for vector in VECTORS]
    messages += [encode(one, layout) for layout in ("c", "rfc46")]
    sent = {b"".join(frames).hex().upper() for frames in messages}
    shown = [
        re.sub(r"\s", "", frames)
        for block in BLOCKS
        if is_of(block, {"docs/wire.md | [!F]* | ": ""}) and not is_of(block, EXEMPT)
        for frames in re.split(r"^(?:c|rfc46) ", block.text, flags=re.MULTILINE)[1:]
    ]
    assert len(shown) >= 7
    assert [frames for frames in shown if frames not in sent] == []
