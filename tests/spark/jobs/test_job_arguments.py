"""What jobs are told, and what they are told wrongly."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

import pytest

from dafka_core.cli.job_command import jobs
from dafka_spark.jobs.support.job_exit import run_named
from tests.spark.jobs.programs import ROOT


class Told(NamedTuple):
    code: int
    out: str
    err: str


class Jobs:
    """Runs jobs in this process: for those that end before they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: str) -> Told:
        self._monkeypatch.setattr(sys, "argv", ["-c", *arguments])
        with pytest.raises(SystemExit) as ended:
            run_named()
        assert isinstance(ended.value.code, int)
        return Told(ended.value.code, *self._capsys.readouterr())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Jobs:
    return Jobs(monkeypatch, capsys)


@pytest.mark.parametrize("name", jobs())
def test_every_job_explains_itself(here: Jobs, name: str) -> None:
    told = here.run(name, "--help")
    assert told.code == 0
    assert told.out.startswith(f"usage: dafka job {name} ")
    assert "--tower" in told.out
    assert told.err == ""
    flags = {*re.findall(r"--[a-z-]+", told.out)} - {"--help"}
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert [flag for flag in flags if f"`{flag}`" not in page] == []


SESSIONS = ("sessionize", "--checkpoint=unused", "--topic=x", "--to=y")
FILES = ("compact_to_parquet", "--checkpoint=unused")
COPY = ("topic_to_topic", "--checkpoint=unused", "--to=y")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("replay_flights", "--limit", "0"), "argument --limit: must be a whole number of at"),
        (("replay_flights", "--rate", "-5"), "argument --rate: must be a number, 0 or more"),
        (("replay_flights", "--rate", "nan"), "argument --rate: must be a number, 0 or more"),
        (("replay_flights", "--tower", "a:b"), "option 'tower' = 'a:b': must be HOST"),
        (("replay_flights", "--rates", "5", "--frm"), "unrecognized arguments: "),
        ((*COPY, "--topic=x,y"), "--to y: the job would read what it writes"),
        ((*COPY, "--topic="), "option 'subscribe' = '': a topic must have 1 to 255 bytes"),
        ((*COPY, "--topic=x", "--acks=none"), "option 'acks' = 'none': must be a whole number"),
        ((*COPY, "--topic=x", "--starting-offsets=never"), "option 'startingOffsets' = 'never'"),
        ((*SESSIONS, "--gap=0s"), "argument --gap: must be longer than nothing, not '0s'"),
        ((*SESSIONS, "--watermark=soon"), "argument --watermark: must be a time like 500ms, 30s,"),
        (
            (*FILES, "--topic=x", "--output=s3://a"),
            "argument --output: must be a directory of this",
        ),
        ((*FILES, "--output=a"), "one of the arguments --topic --topic-pattern is required"),
        ((*FILES, "--topic-pattern=(", "--output=a"), "option 'subscribePattern' = '('"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(
    here: Jobs, arguments: tuple[str, ...], expected: str
) -> None:
    told = here.run(*arguments)
    assert told.code == 2
    (line,) = told.err.splitlines()
    assert line.startswith(f"dafka job {arguments[0]}: {expected}")


def test_a_wrong_variable_of_the_environment_is_named(
    here: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAFKA_TOWER", "a:b")
    told = here.run("replay_flights")
    assert told.code == 2
    (line,) = told.err.splitlines()
    expected = "dafka job replay_flights: environment variable 'DAFKA_TOWER' = 'a:b': must"
    assert line.startswith(expected)
