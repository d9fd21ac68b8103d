"""``dafka perf``."""

from __future__ import annotations

import json

from tests.integration.cli.processes import refusal, run, succeed


def rows(*arguments: str) -> dict[str, dict[str, float]]:
    done = succeed("perf", *arguments, "--json")
    return {row.pop("what"): row for row in map(json.loads, done.stdout.splitlines())}


def test_records_are_timed_in_and_out(tower: str) -> None:
    at = ("--tower", tower)
    made = rows("produce", "perf", *at, "--count", "2500", "--size", "20", "--batch", "1000")
    assert {name: (row["records"], row["bytes"]) for name, row in made.items()} == {
        "published": (2_500, 50_000),
        "acknowledged": (2_500, 50_000),
    }
    assert made["published"]["seconds"] <= made["acknowledged"]["seconds"]
    for command, what in (("consume", "consumed"), ("store", "read")):
        [(name, row)] = rows(command, "perf", *at).items()
        assert (name, row["records"], row["bytes"]) == (what, 2_500, 50_000)
        assert row["records_per_s"] > 0


def test_a_topic_that_is_not_there_is_an_error(tower: str) -> None:
    run("produce", "there", "--tower", tower, given=b"1\n")
    failed = refusal(1, "perf", "consume", "ther", "--tower", tower)
    assert "no store has records of topic 'ther' (did you mean 'there'?)" in failed
