"""``dafka checkpoint``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import StoreDouble
from tests.integration.cli.processes import run, sentence, shown
from tests.integration.cluster.audited_query import OUT, AuditedQuery
from tests.unit.queries.checkpoints import ENDS, QUERY, A, B, checkpoint


def rows(*arguments: object) -> list[dict[str, Any]]:
    """The rows that a command prints, as JSON."""
    ran = run("checkpoint", *map(str, arguments), "--json")
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_show_lists_batches_and_what_they_have(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "c", committed=2)
    shown = run("checkpoint", "show", str(directory))
    assert f"query {QUERY}: batches 0 to 2; batch 2 is unfinished" in shown.stderr.decode()
    found = rows("show", directory)
    assert [(each["batch"], each["state"], each["records"]) for each in found] == [
        (0, "committed", 4),
        (1, "committed", 3),
        (2, "unfinished", 3),
    ]
    assert found[0]["planned"] == "2026-11-23T18:47:09+00:00"
    assert rows("show", directory, "--batch", 1) == [
        {"batch": 1, "state": "committed", "source": "0", "topic": "t"}
        | {"partition": name, "start": start, "end": end}
        for name, start, end in (("A", 4, 6), ("B", 2, 3))
    ]
    old = checkpoint(tmp_path / "old", first=9)
    assert [each["records"] for each in rows("show", old)] == [None, 1 + 2, 3]


def test_diff_of_two_checkpoints_and_of_two_batches(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    two = checkpoint(tmp_path / "two", [*ENDS, SourceOffset({A: 9, B: 5})])
    only = {"source": "0", "topic": "t"}
    assert rows("diff", one, two) == [only | {"partition": "B", "a": 3, "b": 5, "difference": 2}]
    assert rows("diff", one) == [only | {"partition": "A", "a": 6, "b": 9, "difference": 3}]
    assert rows("diff", one, "--batch", 0, "--other-batch", 1) == [
        only | {"partition": "A", "a": 4, "b": 6, "difference": 2},
        only | {"partition": "B", "a": None, "b": 3, "difference": None},
    ]
    same = run("checkpoint", "diff", str(one), str(one))
    assert b"both end at the same offsets" in same.stderr
    assert same.stdout == b""


def test_copies_say_what_they_are(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    made = run("checkpoint", "copy", str(one), str(tmp_path / "copy"), "--json")
    told = {"checkpoint": str(tmp_path / "copy"), "query": QUERY, "next_batch": 3}
    assert json.loads(made.stdout) == told
    assert f"copy: query {QUERY}" in made.stderr.decode()
    assert b"let only one of the two go on" in made.stderr
    made = run("checkpoint", "fork", str(one), f"file:{tmp_path}/fork")
    assert f"is written by the first query, {QUERY}, too" in made.stderr.decode()
    assert f"fork: query {QUERY}" not in made.stderr.decode()
    assert rows("diff", one, tmp_path / "fork") == []


def test_a_rewound_query_and_one_that_is_reset(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    refused = run("checkpoint", "rewind", str(one), "--to-batch", "0")
    assert refused.returncode == 2
    assert "say that it does not run (--stopped)" in sentence(refused)
    made = run(
        "checkpoint", "rewind", str(one), "--to-time", "2026-11-23T18:47:10Z", "--stopped", "--json"
    )
    assert made.returncode == 0
    assert f"query {QUERY}: batches 0 to 0; the next one is 1" in made.stderr.decode()
    assert f"all of that is in {one}.backup-2" in made.stderr.decode()
    assert b"refuses other rows under the numbers" in made.stderr
    (backup,) = tmp_path.glob("one.backup-*")
    told = {"checkpoint": str(one), "query": QUERY, "next_batch": 1}
    assert json.loads(made.stdout) == told | {"backup": str(backup)}
    assert [each["batch"] for each in rows("show", backup)] == [0, 1, 2]
    made = run("checkpoint", "reset", str(one), "--stopped", "--json")
    assert f"{one} is empty" in made.stderr.decode()
    (again,) = set(tmp_path.glob("one.backup-*")) - {backup}
    assert json.loads(made.stdout) == {"checkpoint": str(one), "backup": str(again)}
    assert not [*one.iterdir()]


def test_what_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    one = str(checkpoint(tmp_path / "one"))
    for arguments, says in (
        (("show", str(tmp_path)), "it has no file 'metadata'"),
        (("show", "s3a://bucket/c"), "is not on this machine, but in s3a:; copy the directory"),
        (("show", one, "--batch", "7"), "has no batch 7, but batches 0 to 2"),
        (("copy", one, one), "is, or is in, the checkpoint"),
        (("rewind", one), "for '--to-batch': must be given, or --to-time"),
        (("rewind", one, "--to-time", "2026-11-23T18:00:00"), "must be a time with a zone"),
        (("rewind", one, "--to-batch", "9", "--stopped"), "has no batch 9"),
        (("show",), "Missing argument 'PATH'"),
        (("frok", one), "there is no command 'frok'; did you mean fork?"),
    ):
        refused = run("checkpoint", *arguments)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert says in sentence(refused)


def test_verify_proves_or_names_the_batch(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "store", "S" * 32) as store:
        query = AuditedQuery(tmp_path / "c", [store])
        at = ["--stores", store.location.locations[0]]
        path = str(query.checkpoint.path)
        refused = run("checkpoint", "verify", path, *at)
        assert refused.returncode == 1
        assert "it makes them with option audit = true" in sentence(refused)
        query.note()
        made = run("checkpoint", "verify", path, "--pass-through", "--json", *at)
        assert json.loads(made.stdout.splitlines()[2]) == {
            "batch": 2,
            "state": "proved",
            "rows": 4,
            "source": "same",
            "recomputed": True,
            "why": "",
        }
        proved = run("checkpoint", "verify", path, "--from-batch", "1", *at)
        assert b"8 rows of 2 batches are as they were written" in proved.stderr
        assert re.search(r"3/\? +batches", shown("checkpoint", "verify", path, *at))
        query.append(OUT[0], [b"more"])
        wrong = run("checkpoint", "verify", path, *at)
        assert wrong.returncode == 1
        assert "rows from offset 6 on are of no batch" in sentence(wrong)
        assert len(wrong.stdout.splitlines()) == 4
        refused = run("checkpoint", "verify", path, "--from-batch", "9", *at)
        assert refused.returncode == 1


def test_what_cannot_be_verified_is_a_sentence(tmp_path: Path) -> None:
    one = str(checkpoint(tmp_path / "one"))
    for arguments, says in (
        (("--query", "no.such:f"), "for '--query': must be MODULE:FUNCTION"),
        (("--query", "os:no"), "for '--query': must be MODULE:FUNCTION"),
        (("--query", "a:b", "--pass-through"), "is given with --pass-through"),
        (("--query", "os:fspath", "--sink-option", "x"), "must be NAME=VALUE"),
        (("--tower", "-"), "must be HOST[:SUB_PORT:PUB_PORT]"),
    ):
        refused = run("checkpoint", "verify", one, *arguments)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert says in sentence(refused)
