"""``dafka doctor``."""

from __future__ import annotations

import json
import socket

import pytest

from tests.integration.cli.processes import run, sentence


@pytest.fixture(scope="module")
def filled(tower: str) -> str:
    assert run("produce", "flights", "--tower", tower, given=b"1\n2\n").returncode == 0
    return tower


def test_all_is_well(filled: str) -> None:
    asked = run("doctor", "--tower", filled, "--topic", "flights")
    assert asked.returncode == 0, asked.stderr
    assert asked.stderr == b""
    rows = [line.split("\t") for line in asked.stdout.decode().splitlines()]
    assert {row[0] for row in rows} == {"ok"}
    assert rows[0] == ["ok", "tower", f"a tower answers at {filled}", ""]
    assert ["ok", "topic", "topic 'flights' has 1 partition with 2 records", ""] in rows


def test_a_problem_is_told_as_json_and_by_the_exit_code(filled: str) -> None:
    asked = run("doctor", "--tower", filled, "--topic", "fligths", "--json")
    assert asked.returncode == 1
    assert sentence(asked) == "1 problem"
    wrong = [
        each for each in map(json.loads, asked.stdout.splitlines()) if each["severity"] == "problem"
    ]
    assert wrong == [
        {
            "severity": "problem",
            "about": "topic",
            "finding": "no store has topic 'fligths' (did you mean 'flights'?)",
            "remedy": "correct the name, or write to it: a topic is there once it has a record",
        }
    ]


def test_no_tower_and_something_else_in_its_place() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    asked = run("doctor", "--tower", f"127.0.0.1:{port}:{port}")
    assert asked.returncode == 1
    assert asked.stdout.startswith(b"problem\ttower\tnothing listens at 127.0.0.1:")


def test_stores_that_are_named(filled: str) -> None:
    port = filled.rsplit(":", 1)[1]
    asked = run("doctor", "--stores", f"grpc://127.0.0.1:{port}")
    assert asked.returncode == 1
    assert b"is no store: something else than a store's Arrow Flight listens there" in asked.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--stores", "h:1"), "must be like grpc://HOST:PORT"),
        (("--topic", ""), "option 'topic' = ''"),
        (("--tower", "h:x"), "option 'tower' = 'h:x'"),
        (("--severity", "all"), "there is no option --severity (see 'dafka doctor --help')"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: tuple[str, ...], says: str) -> None:
    asked = run("doctor", *arguments)
    assert asked.returncode == 2
    assert says in sentence(asked)
