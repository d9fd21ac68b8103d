"""Arguments, output and exit codes of jobs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.cli.job_commands import jobs
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import wait_until
from dafka_spark.job_support import describe_error, ends, grouped, run_job
from tests.spark.jobs.programs import (
    JOB_TIMEOUT_S,
    JOBS,
    ROOT,
    count,
    finished,
)


class Told(NamedTuple):
    code: int
    out: str
    err: str


class Jobs:
    """Runs jobs in this process: for those that end before they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, name: str, *arguments: str) -> Told:
        self._monkeypatch.setattr(sys, "argv", [f"dafka job {name}", *arguments])
        with pytest.raises(SystemExit) as ended:
            run_job(import_module(name).main)
        assert isinstance(ended.value.code, int)
        return Told(ended.value.code, *self._capsys.readouterr())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Jobs]:
    on_interrupt = signal.getsignal(signal.SIGINT)
    yield Jobs(monkeypatch, capsys)
    signal.signal(signal.SIGINT, on_interrupt)


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
        (("demo.replay_flights", "--limit", "0"), "argument --limit: must be a whole number of at"),
        (("demo.replay_flights", "--rate", "-5"), "argument --rate: must be a number, 0 or more"),
        (("demo.replay_flights", "--rate", "nan"), "argument --rate: must be a number, 0 or more"),
        (("lag_report", "--tower", "a:b"), "option 'tower' = 'a:b': must be HOST"),
        (("lag_report", "--rates", "5", "--frm"), "unrecognized arguments: "),
        ((*COPY, "--topic=x,y"), "--to y: the job would read its own output"),
        ((*COPY, "--topic="), "option 'subscribe' = '': a topic must have 1 to 255 bytes"),
        ((*COPY, "--topic=x", "--acks=none"), "option 'acks' = 'none': must be a whole number"),
        ((*COPY, "--topic=x", "--starting-offsets=never"), "option 'startingOffsets' = 'never'"),
        ((*SESSIONS, "--gap=0s"), "argument --gap: must be longer than 0, not '0s'"),
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
    told = here.run("lag_report")
    assert told.code == 2
    (line,) = told.err.splitlines()
    expected = "dafka job lag_report: environment variable 'DAFKA_TOWER' = 'a:b': must"
    assert line.startswith(expected)


def test_a_batch_of_many_partitions_is_summed_up() -> None:
    many = {TopicPartition("t", f"P{number}"): 5 for number in range(1_000)}
    assert ends(json.dumps(SourceOffset(many).as_json())) == {"partitions": 1_000, "records": 5_000}
    few = {TopicPartition("t", "A"): 5}
    assert ends(json.dumps(SourceOffset(few).as_json())) == {"t": {"A": 5}}


def test_rows_of_one_value_are_together() -> None:
    batches = [
        pa.RecordBatch.from_pydict({"a": a, "b": b, "n": n})
        for a, b, n in (
            (["x", "x"], [1, 2], [0, 1]),
            (["x", "x", "y"], [2, 2, 2], [2, 3, 4]),
            (["y"], [None], [5]),
        )
    ]
    groups = grouped(batches, ("a", "b"))
    found = [(key, [each["n"].to_pylist() for each in rows]) for key, rows in groups]
    assert found == [
        (("x", 1), [[0]]),
        (("x", 2), [[1], [2, 3]]),
        (("y", 2), [[4]]),
        (("y", None), [[5]]),
    ]
    assert [*grouped([], ("a",))] == []


RUNS_TWICE = re.compile("query runs twice at once|[Cc]oncurrent")
"""The message of the sink, or of Spark."""


def test_a_tower_that_is_not_there_is_one_sentence() -> None:
    nobody = ("--tower=127.0.0.1:1:2", "--limit=5")
    done = finished(sys.executable, str(JOBS / "demo" / "replay_flights.py"), *nobody)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("replay_flights.py: no tower answered at 127.0.0.1:1:2 within 10 s; ")


def test_an_error_of_java_is_told_by_its_cause() -> None:
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    said = (
        "An error occurred while calling o1.start.\n: java.io.IOException: mkdir failed\n\tat a.B"
    )
    assert describe_error(kind(said)) == ("Py4JJavaError", "java.io.IOException: mkdir failed")
    assert describe_error(kind(f"{said}\nCaused by: x.Y: full")) == ("Py4JJavaError", "x.Y: full")
    twice = ": x.Exists: Failed to rename file:/a/metadata as destination already exists."
    assert RUNS_TWICE.search(describe_error(kind(twice))[1])
    written = (
        "[A_CONDITION] The checkpoint location /a/c/offsets should be empty on batch 0\nPlease"
    )
    assert RUNS_TWICE.search(describe_error(kind(written))[1])
    assert "checkpoint /a/c is part of a copy" in describe_error(kind(written))[1]
    between = "Traceback\ndafka_core.errors.FencedError: topic 't': another attempt\n\nat b.C"
    assert RUNS_TWICE.search(describe_error(kind(between))[1])
    assert describe_error(ValueError("a defect")) == ("ValueError", "")


def test_a_misspelt_topic_is_one_sentence(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    copy = ("--to=y", f"--checkpoint={tmp_path}", "--available-now", f"--tower={cluster.tower}")
    done = finished(sys.executable, str(JOBS / "topic_to_topic.py"), "--topic=fligths", *copy)
    assert done.returncode == 2
    lines = done.stderr.splitlines()  # Python workers that Spark ends may say more
    (line,) = (line for line in lines if line.startswith("topic_to_topic.py"))
    assert str(JOBS) not in done.stderr, "it has a trace of where it ended"
    assert line.startswith(
        "topic_to_topic.py: option 'subscribe' = 'fligths': no store has topic 'fligths' (did you "
        "mean 'flights'?); failOnMissingTopic = false"
    )


def test_of_two_runs_of_one_job_one_goes_on(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Both write the same batch, which is written once; the later one reports the other."""
    command = [
        *(sys.executable, str(JOBS / "topic_to_topic.py"), f"--tower={cluster.tower}"),
        *("--topic=twice-in", "--to=twice-out", f"--checkpoint={tmp_path / 'checkpoint'}"),
    ]
    values: list[bytes] = []
    with ExitStack() as stack, Producer("twice-in", tower=cluster.tower) as producer:
        runs = {}
        for name in ("one", "two"):
            said = stack.enter_context((tmp_path / name).open("w"))
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
            runs[stack.enter_context(process)] = tmp_path / name
            stack.callback(process.kill)

        def one_has_ended() -> bool:
            values.append(b"%d" % len(values))
            producer.publish(values[-1])
            return any(process.poll() is not None for process in runs)

        wait_until(one_has_ended, "one of them to end", timeout_s=JOB_TIMEOUT_S)
        producer.flush(30)
        (late,) = (process for process in runs if process.poll() is not None)
        (other,) = {*runs} - {late}
        with Reader(tower=cluster.tower) as reader:
            wait_until(lambda: count(reader, "twice-out") >= len(values))
            other.send_signal(signal.SIGINT)
            assert other.wait(JOB_TIMEOUT_S) == 0, runs[other].read_text()
            assert count(reader, "twice-out") == len(values)
        assert late.returncode == 1
        lines = runs[late].read_text().splitlines()  # Python workers of Spark's may say more
        told = [line for line in lines if line.startswith("topic_to_topic.py")]
        assert any(RUNS_TWICE.search(line) for line in told), "\n".join(lines)
