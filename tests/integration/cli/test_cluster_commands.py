"""``dafka status`` and ``dafka nodes``."""

import json
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer
from tests.integration.cli.processes import Dafka, listed, run, sentence, succeed


def states(*arguments: str) -> tuple[int, list[tuple[str, str]], str]:
    """Return the exit code, the listed nodes with their states, and the complaints."""
    done = run("status", *arguments, "--json", "--timeout-s", "5")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, [(row["what"], row["state"]) for row in rows], done.stderr.decode()


def test_a_cluster_that_answers_is_ok(tower: str) -> None:
    assert states("--tower", tower) == (0, [("tower", "ok"), ("store", "ok")], "")
    code, _, said = states("--tower", tower, "--min-stores", "2")
    assert (code, said) == (1, "dafka: 1 stores respond, and 2 are required\n")
    assert states("--tower", tower, "--min-stores", "all")[0] == 0


def test_no_tower_and_no_store_are_not(lone_tower: str) -> None:
    code, rows, said = states("--tower", "127.0.0.1:1:2")
    assert (code, rows, said) == (1, [("tower", "wrong")], "dafka: no tower responds\n")
    code, rows, said = states("--tower", lone_tower)
    assert (code, rows, said) == (1, [("tower", "ok")], "dafka: no store responds\n")
    assert states("--stores", "grpc://127.0.0.1:1")[1] == [("store", "silent")]
    assert "for '--min-stores'" in sentence(run("status", "--min-stores", "0"))


def test_a_store_that_is_known_and_away_is_named(lone_tower: str, tmp_path: Path) -> None:
    at = ("--tower", lone_tower, "--beacon-interval-ms", "100", "--peer-expiry-ms", "1000")
    one, two = tmp_path / "one", tmp_path / "two"
    with Dafka("store", "--dir", str(one), *at) as first:
        first.ready()
        with Dafka("store", "--dir", str(two), *at) as second:
            address = second.ready()["address"]
            while len(states("--tower", lone_tower)[1]) < 3:  # until they have met
                continue
            second.stop()
        while True:
            done = run("status", "--tower", lone_tower, "--json")
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            if (address, "away") in [(row["name"], row["state"]) for row in rows]:
                break
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[-1] == "dafka: 1 of 2 stores do not respond"
        assert states("--tower", lone_tower, "--min-stores", "1")[0] == 0


def test_nodes_say_what_they_are_and_follow(tower: str) -> None:
    with Producer("t", tower=tower) as producer, Consumer(tower=tower) as consumer:
        consumer.subscribe("followed")
        rows: dict[str, dict[str, object]] = {}
        while not {producer.address, consumer.address} <= rows.keys():  # until they have met
            done = succeed("nodes", "--tower", tower, "--json")
            rows = {row["node"]: row for row in map(json.loads, done.stdout.splitlines())}
        assert rows[""] == {
            "node": "",
            "kind": "tower",
            "endpoint": tower,
            "connected": True,
            "topics": "",
        }
        assert rows[producer.address]["kind"] == "producer"
        assert rows[consumer.address]["topics"] == "followed"
        assert {row["kind"] for row in rows.values()} >= {"store", "consumer"}


@pytest.fixture(scope="module")
def filled(tower: str) -> str:
    succeed("produce", "flights", "--tower", tower, given=b"1\n2\n")
    return tower


def test_all_is_well(filled: str) -> None:
    asked = succeed("doctor", "--tower", filled, "--topic", "flights")
    assert asked.stderr == b""
    rows = listed(asked)
    assert {row[0] for row in rows} == {"ok"}
    assert rows[0] == ["ok", "tower", f"a tower responds at {filled}"]
    assert ["ok", "topic", "topic 'flights' has 1 partition with 2 records"] in rows


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
            "remedy": "correct the name, or write to it: a topic exists once it has a record",
        }
    ]
