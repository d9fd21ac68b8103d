"""``dafka topics`` and ``dafka heads``."""

from __future__ import annotations

import json

import pytest

from tests.integration.cli.processes import run, sentence

FIRST, SECOND = "A" * 32, "B" * 32


@pytest.fixture(scope="module")
def filled(tower: str) -> str:
    """Topic ``one`` with two partitions, topic ``one-more`` with one."""
    for topic, address, values in [
        ("one", SECOND, b"1\n2\n3\n"),
        ("one", FIRST, b"1\n"),
        ("one-more", FIRST, b"1\n2\n"),
    ]:
        at = ("--tower", tower, "--address", address)
        assert run("produce", topic, *at, given=values).returncode == 0
    return tower


def test_topics_are_listed_with_their_totals(filled: str) -> None:
    asked = run("topics", "--tower", filled)
    assert asked.returncode == 0
    assert asked.stdout == b"one\t2\t4\none-more\t1\t2\n"
    assert asked.stderr == b""


def test_topics_as_json(filled: str) -> None:
    asked = run("topics", "--tower", filled, "--json")
    assert [json.loads(line) for line in asked.stdout.splitlines()] == [
        {"topic": "one", "partitions": 2, "records": 4},
        {"topic": "one-more", "partitions": 1, "records": 2},
    ]


def test_heads_are_those_of_the_topic_alone(filled: str) -> None:
    for _ in range(5):  # each time another node asks, which the store has to meet first
        asked = run("heads", "one", "--tower", filled)
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.decode() == f"{FIRST}\t0\t1\n{SECOND}\t0\t3\n"


def test_heads_as_json(filled: str) -> None:
    asked = run("heads", "one-more", "--tower", filled, "--json")
    assert json.loads(asked.stdout) == {"partition": FIRST, "earliest": 0, "next": 2}


def test_heads_of_an_unknown_topic_are_an_error(filled: str) -> None:
    asked = run("heads", "on", "--tower", filled)
    assert asked.returncode == 1
    assert asked.stdout == b""
    assert sentence(asked) == "no store has records of topic 'on'; 'dafka topics' lists all"


@pytest.mark.parametrize("arguments", [("topics",), ("heads", "one")])
def test_without_a_store_they_say_so(arguments: tuple[str, ...], lone_tower: str) -> None:
    asked = run(*arguments, "--tower", lone_tower, "--timeout-s", "0.5")
    assert asked.returncode == 1
    assert sentence(asked).startswith(f"no store was heard of through {lone_tower} within 0.5 s")


@pytest.mark.parametrize("arguments", [("topics",), ("heads", "one")])
def test_without_a_tower_they_say_so(arguments: tuple[str, ...]) -> None:
    asked = run(*arguments, "--tower", "127.0.0.1:1:2", "--tower-timeout-s", "0.2")
    assert asked.returncode == 1
    assert sentence(asked).startswith("no tower answered at 127.0.0.1:1:2 within 0.2 s")
