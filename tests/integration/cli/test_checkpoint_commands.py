"""``dafka checkpoint``."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import StoreDouble
from tests.integration.cli.processes import refusal, run, sentence, shown, succeed
from tests.integration.cluster.audited_query import OUT, AuditedQuery
from tests.unit.queries.test_checkpoint import ENDS, QUERY, A, B, checkpoint


def rows(*arguments: object, text: str = "") -> list[dict[str, Any]]:
    """Return the printed rows; standard error has the text."""
    ran = succeed("checkpoint", *map(str, arguments), "--json")
    assert text in ran.stderr.decode()
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_show_lists_batches_and_their_ranges(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "c", committed=2)
    found = rows("show", directory, text=f"query {QUERY}: batches 0 to 2; batch 2 is unfinished")
    assert [(each["batch"], each["state"], each["records"]) for each in found] == [
        (0, "committed", 4),
        (1, "committed", 3),
        (2, "unfinished", 3),
    ]
    assert found[0]["planned"] == "2026-11-23T18:47:09+00:00"
    batch = {"batch": 1, "state": "committed", "source": "0", "topic": "t"}
    assert rows("show", directory, "--batch", 1) == [
        batch | {"partition": "A", "start": 4, "end": 6},
        batch | {"partition": "B", "start": 2, "end": 3},
    ]
    plan = directory / "offsets" / "0"
    plan.write_text(plan.read_text("utf-8").replace("batchTimestampMs", "no"), encoding="utf-8")
    assert rows("show", directory)[0]["planned"] is None
    old = checkpoint(tmp_path / "old", first=9)
    assert [each["records"] for each in rows("show", old)] == [None, 1 + 2, 3]


def test_diff_of_two_checkpoints_and_of_two_batches(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    two = checkpoint(tmp_path / "two", [*ENDS, SourceOffset({A: 9, B: 5})])

    def row(partition: str, a: int | None, b: int, difference: int | None) -> dict[str, Any]:
        where = {"source": "0", "topic": "t", "partition": partition}
        return where | {"a": a, "b": b, "difference": difference}

    assert rows("diff", one, two) == [row("B", 3, 5, 2)]
    assert rows("diff", one) == [row("A", 6, 9, 3)]
    batches = ("--batch", 0, "--other-batch", 1)
    assert rows("diff", one, *batches) == [row("A", 4, 6, 2), row("B", None, 3, None)]
    assert rows("diff", one, one, text="both end at the same offsets") == []


def test_a_copy_and_a_fork(tmp_path: Path) -> None:
    one, copy = checkpoint(tmp_path / "one"), tmp_path / "copy"
    (made,) = rows("copy", one, copy, text="run the query from only one of the two")
    assert made == {"checkpoint": str(copy), "query": QUERY, "next_batch": 3}
    text = f"query {QUERY} also writes these rows"
    (made,) = rows("fork", one, f"file:{tmp_path}/fork", text=text)
    assert made["query"] != QUERY
    assert rows("diff", one, tmp_path / "fork") == []


def test_a_rewound_query_and_one_that_is_reset(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    refused = run("checkpoint", "rewind", str(one), "--to-batch", "0")
    assert (refused.returncode, "add --stopped" in sentence(refused)) == (2, True)
    until = ("--to-time", "2026-11-23T18:47:10Z", "--stopped")
    (made,) = rows("rewind", one, *until, text="refuses different rows under the numbers")
    backup = made.pop("backup")
    assert made == {"checkpoint": str(one), "query": QUERY, "next_batch": 1}
    assert [each["batch"] for each in rows("show", backup)] == [0, 1, 2]
    (made,) = rows("reset", one, "--stopped", text=f"{one} is empty")
    assert {str(each) for each in tmp_path.glob("one.backup-*")} == {backup, made["backup"]}
    assert [*one.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("show {c}/offsets", "it has no file 'metadata'"),
        ("show s3a://bucket/c", "is not on this machine, but in s3a:; copy the directory"),
        ("show", "Missing argument 'PATH'"),
        ("rewind {c}", "for '--to-batch': or --to-time is required"),
        ("rewind {c} --to-time 2026-11-23T18:00:00", "has no time zone"),
        ("frok {c}", "did you mean fork?"),
        ("verify {c} --query no.such:f", "for '--query': must be MODULE:FUNCTION"),
        ("verify {c} --query os:no", "for '--query': must be MODULE:FUNCTION"),
        ("verify {c} --query a:b --pass-through", "cannot be combined with --pass-through"),
        ("verify {c} --query os:fspath --sink-option x", "must be NAME=VALUE"),
        ("verify {c} --tower -", "must be HOST[:SUB_PORT:PUB_PORT]"),
    ],
)
def test_an_invalid_call_is_refused(tmp_path: Path, arguments: str, error: str) -> None:
    path = checkpoint(tmp_path / "c")
    refused = run("checkpoint", *(each.format(c=path) for each in arguments.split()))
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert error in sentence(refused)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[tuple[AuditedQuery, list[str]]]:
    """An audited query, and the arguments that verify it."""
    with StoreDouble(tmp_path / "store", "S" * 32) as store:
        query = AuditedQuery(tmp_path / "c", [store])
        stores = ["--stores", store.location.locations[0]]
        yield query, ["verify", str(query.checkpoint.path), *stores]


def test_verify_proves_the_batches(query: tuple[AuditedQuery, list[str]]) -> None:
    audited, verify = query
    audited.audit()
    assert rows(*verify, "--pass-through")[2] == (
        {"batch": 2, "state": "proved", "rows": 4, "source": "same", "recomputed": True, "why": ""}
    )
    rows(*verify, "--from-batch", 1, text="8 rows of 2 batches are unchanged")
    assert re.search(r"3/\? +batches", shown("checkpoint", *verify))


def test_verify_names_the_wrong_batch(query: tuple[AuditedQuery, list[str]]) -> None:
    audited, verify = query

    def refused(*more: str) -> str:
        return refusal(1, "checkpoint", *verify, *more)

    assert "sinks with option audit = true write them" in refused()
    audited.audit()
    assert "has written no batch from 9 on" in refused("--from-batch", "9")
    audited.append(OUT[0], [b"more"])
    assert "rows from offset 6 on belong to no batch" in refused()
