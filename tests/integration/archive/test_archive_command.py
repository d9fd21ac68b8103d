"""``dafka archive``: a topic of two stores as Parquet files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dafka_core.testing import StoreDouble
from tests.integration.archive.records import A, B, batch, offsets_in_files, offsets_in_manifest
from tests.integration.cli.processes import run, sentence


def test_two_stores_are_archived_once(tmp_path: Path) -> None:
    made = tmp_path / "archive"
    with StoreDouble(tmp_path / "a", "1" * 32) as one, StoreDouble(tmp_path / "b", "2" * 32) as two:
        one.log.append([batch(A, 0, 40), batch(B, 0, 10)])
        two.log.append([batch(A, 0, 30)])
        two.log.append([batch(A, 30, 50)])
        uris = ",".join(each.location.locations[0] for each in (one, two))
        asked = ("archive", "flights", "--dir", str(made), "--stores", uris)
        done = run(*asked, "--before", "2026-01-02T06:00Z", "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said.pop("bytes") > 0
        assert said == {"topic": "flights", "files": 3, "records": 40}
        assert offsets_in_manifest(made, A) == offsets_in_files(made, A) == list(range(30))
        done = run(*asked)  # all of it is old
        assert done.returncode == 0, done.stderr
        assert offsets_in_manifest(made, A) == offsets_in_files(made, A) == list(range(50))
        assert offsets_in_files(made, B) == list(range(10))
        done = run(*asked, "--before", "now")
        assert b"nothing to archive: all records are in the archive" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (
            ("none", "--dir", "{made}"),
            1,
            "no store has records of topic 'none' (there are 'flights')",
        ),
        (
            ("flights", "--dir", "{made}", "--before", "noon"),
            2,
            "or how long ago it was, like 15m, a date, or now",
        ),
        (("flights", "--dir", "{made}", "--before", "2026-01-02T06:00"), 2, "has no time zone"),
        (("flights", "--dir", "{made}", "--before", ""), 2, "like 15m, a date, or now"),
        (("flights", "--dir", "{file}"), 1, "is a file: name a directory"),
        (("flights", "--dir", "{made}/not/there"), 1, "No such file or directory"),
        (("flights",), 2, "Missing option '--dir'"),
    ],
)
def test_what_cannot_be_archived_gets_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    with StoreDouble(tmp_path / "a", "1" * 32) as store:
        store.log.append([batch(A, 0, 5)])
        named = {"made": tmp_path / "archive", "file": tmp_path / "a" / "data.mdb"}
        words = (word.format(**named) for word in arguments)
        done = run("archive", *words, "--stores", store.location.locations[0])
        assert (done.returncode, expected in sentence(done)) == (code, True), done.stderr
