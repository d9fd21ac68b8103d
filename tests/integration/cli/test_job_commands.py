"""``dafka job``: the list of jobs, and how each is run."""

import json
import os
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from dafka_core.cli import job_commands
from dafka_core.cli.job_commands import job
from dafka_core.cli.process import ARROW_POOL, keep_freed_memory
from dafka_core.errors import DafkaError
from tests.integration.cli.processes import refusal, run, sentence, succeed

JOBS = Path(__file__).parents[3] / "jobs"


def test_jobs_are_listed_with_what_they_do() -> None:
    shown = succeed("job", "--json")
    found = {
        each["job"]: each["what it does"] for each in map(json.loads, shown.stdout.splitlines())
    }
    assert {*found} == {path.stem for path in JOBS.glob("*.py")}
    assert all(purpose.endswith(".") for purpose in found.values())


def test_a_job_runs_with_its_own_arguments() -> None:
    shown = succeed("job", "topic_to_topic", "--help")
    assert shown.stdout.startswith(b"usage: dafka job topic_to_topic ")
    refused = run("job", "lag-report", "--format=csv", DAFKA_TOWER="127.0.0.1:1:2")
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"dafka job lag_report: argument --format: invalid choice")


def test_a_misspelt_job_gets_the_nearest_name() -> None:
    refused = refusal(2, "job", "topic_to_parket")
    expected = "unknown job 'topic_to_parket' (did you mean 'topic_to_parquet'?)"
    assert expected in refused


@pytest.mark.parametrize("place", ["before", "behind"])
def test_how_spark_submit_runs_a_job_is_told(place: str, tmp_path: Path) -> None:
    file = tmp_path / "dafka.toml"
    file.write_text("tower = 'far.example'\n", encoding="utf-8")
    words = ["topic_to_topic", "--topic", "a b"]
    words.insert(0 if place == "before" else 1, "--print-submit")
    shown = succeed("job", *words, DAFKA_CONFIG=str(file))
    program, flag, logging, path, *arguments = shlex.split(shown.stdout.decode())
    assert (program, flag) == ("spark-submit", "--driver-java-options")
    assert Path(logging.partition("=file://")[2]).is_file()
    assert Path(path) == JOBS / "topic_to_topic.py"
    assert arguments == ["--tower=far.example", "--topic", "a b"]


def test_where_spark_is_missing_a_job_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        job_commands, "find_spec", lambda name: None if name == "pyspark" else find_spec(name)
    )
    with pytest.raises(DafkaError, match="needs Spark: pip install 'pyspark>"):
        job("topic_to_topic", (), print_submit=False)


def test_without_the_jobs_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_commands, "find_spec", lambda name: None)
    with pytest.raises(Exception, match="no jobs, as package dafka_spark is not installed"):
        job("topic_to_topic", (), print_submit=False)


@pytest.mark.parametrize("given", [None, "mimalloc", "system"])
def test_a_job_has_the_allocator_that_its_user_chose(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv(ARROW_POOL, raising=False)
    else:
        monkeypatch.setenv(ARROW_POOL, given)
    started: list[str | None] = []
    monkeypatch.setattr(os, "execve", lambda *command: started.append(command[2].get(ARROW_POOL)))
    try:
        keep_freed_memory()
        own = subprocess.run(["printenv", ARROW_POOL], stdout=subprocess.PIPE, check=True).stdout
        job("topic_to_topic", (), print_submit=False)
    finally:
        os.unsetenv(ARROW_POOL)
    assert own.decode().strip() == (given or "system")
    assert started == [given]


NAME = "explore_topic.ipynb"


def test_they_are_listed_and_copied_and_never_replaced_unasked(tmp_path: Path) -> None:
    listed = {
        json.loads(line)["notebook"] for line in run("notebooks", "--json").stdout.splitlines()
    }
    there = tmp_path / "new" / "here"
    succeed("notebooks", str(there))
    assert {path.stem for path in there.iterdir()} == listed
    copied = (there / NAME).read_bytes()
    assert json.loads(copied)["nbformat"] == 4
    (there / NAME).write_text("mine")
    (there / "windows_and_late_data.ipynb").unlink()
    refused = refusal(2, "notebooks", str(there))
    assert f"{NAME}, " in refused
    assert "--force" in refused
    assert not (there / "windows_and_late_data.ipynb").exists()
    assert (there / NAME).read_text() == "mine"
    succeed("notebooks", str(there), "explore_topic", "--force")
    assert (there / NAME).read_bytes() == copied


def test_a_name_that_is_misspelt_or_no_place_is_told(tmp_path: Path) -> None:
    misspelt = run("notebooks", str(tmp_path / "x"), "explore_topc")
    assert "did you mean 'explore_topic'?" in sentence(misspelt)
    assert not (tmp_path / "x").exists()
    place = run("notebooks", "explore_topic")
    assert "'dafka notebooks . explore_topic' copies it" in sentence(place)
    (tmp_path / "file").touch()
    for name, why in (("file", "File exists"), ("x" * 300, "File name too long")):
        refused = run("notebooks", str(tmp_path / name))
        assert f"cannot be written to: {why}" in sentence(refused)
