"""``dafka bundle``."""

import json
import tarfile
from pathlib import Path

import pytest

from dafka_core.cli import bundle_command
from dafka_core.cli.app import app
from dafka_core.cli.bundle_command import COMMANDS
from tests.integration.cli.processes import run, sentence, succeed


def test_a_bundle_has_what_the_cluster_says_and_no_record_and_no_secret(
    tower: str, tmp_path: Path
) -> None:
    run("produce", "orders", "--tower", tower, given=b"do not show\n")
    path = tmp_path / "b.tar.gz"
    asked = ("bundle", str(path), "--tower", tower, "--json")
    done = succeed(*asked, DAFKA_SASL_PASSWORD="hunter2", DAFKA_HOST="127.0.0.1")
    assert json.loads(done.stdout) == {"file": str(path)}
    with tarfile.open(path) as archive:
        files = {
            each.name.removeprefix("b/"): (archive.extractfile(each) or path.open("rb")).read()
            for each in archive
        }
    assert {f"{name}.jsonl" for name in COMMANDS} <= set(files)
    assert json.loads(files["topics.jsonl"])["topic"] == "orders"
    assert json.loads(files["versions.json"])["pyzmq"]
    environment = json.loads(files["environment.json"])
    assert environment["DAFKA_SASL_PASSWORD"] == "(not shown)"
    assert environment["DAFKA_HOST"] == "127.0.0.1"
    everything = b"".join(files.values())
    assert b"hunter2" not in everything
    assert b"do not show" not in everything
    assert tower.encode() in files["config.jsonl"]
    again = run("bundle", str(path), "--tower", tower)
    assert "cannot be written: File exists" in sentence(again)


def test_a_cluster_that_does_not_answer_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_command, "COMMANDS", ("topics",))
    path = tmp_path / "b.tar.gz"
    at = ("--tower", "127.0.0.1:1:2", "--tower-timeout-s", "0.2", "--timeout-s", "0.5")
    app.main(["bundle", str(path), *at], standalone_mode=False)
    with tarfile.open(path) as archive:
        said = archive.extractfile("b/topics.errors.txt")
        assert said is not None
        assert b"no tower answered at 127.0.0.1:1:2 within 0.2 s" in said.read()
