"""Arguments, output and exit codes of jobs."""

import json
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from demo import replay_flights

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.cli.job_commands import jobs
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import wait_until
from dafka_spark.job_support import Stopped, describe_error, ends, grouped, run_job, run_query
from tests.spark.jobs.programs import JOB_TIMEOUT_S, JOBS, ROOT, count

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a job in this process; return its exit code, output and errors."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [f"dafka job {name}", *arguments])
        with pytest.raises(SystemExit) as ended:
            run_job(import_module(name).main)
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("name", jobs())
def test_every_job_explains_itself(run_here: Run, name: str) -> None:
    code, out, err = run_here(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: dafka job {name} ")
    flags = {*re.findall(r"--[a-z-]+", out)} - {"--help"}
    assert "--tower" in flags
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert [flag for flag in flags if f"`{flag}`" not in page] == []


SESSIONS = ("sessionize", "--checkpoint=unused", "--topic=x", "--to=y")
FILES = ("compact_to_parquet", "--checkpoint=unused")
COPY = ("topic_to_topic", "--checkpoint=unused", "--to=y")
MIRROR = ("mirror", "--checkpoint=unused", "--to-tower=there", "--to-topic=c")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("demo.replay_flights", "--limit", "0"), "argument --limit: must be a whole number of at"),
        (("demo.replay_flights", "--rate", "-5"), "argument --rate: must be a number, 0 or more"),
        (("demo.replay_flights", "--rate", "nan"), "argument --rate: must be a number, 0 or more"),
        (("lag_report", "--tower", "a:b"), "option 'tower' = 'a:b': must be HOST"),
        (("lag_report", "--rates", "5", "--frm"), "unrecognized arguments: "),
        ((*COPY, "--topic=x,y"), "--to y: the job would read its own output"),
        ((*COPY, "--topic=x, y"), "--to y: the job would read its own output"),
        ((*COPY, r"--topic=\x79"), "--to y: the job would read its own output"),
        ((*COPY, "--topic=x", "--checkpoint="), "argument --checkpoint: must name a directory"),
        (("lag_report", "--output="), "argument --output: must name a directory"),
        ((*COPY, "--topic="), "option 'subscribe' = '': a topic must have 1 to 255 bytes"),
        ((*COPY, "--topic=x", "--acks=none"), "option 'acks' = 'none': must be a whole number"),
        ((*COPY, "--topic=x", "--starting-offsets=never"), "option 'startingOffsets' = 'never'"),
        ((*SESSIONS, "--gap=0s"), "argument --gap: must be longer than 0, not '0s'"),
        ((*SESSIONS, "--watermark=soon"), "argument --watermark: must be a time like 500ms, 30s,"),
        ((*FILES, "--topic=x", "--output=s3://a"), "argument --output: must be a directory of th"),
        ((*FILES, "--output=a"), "one of the arguments --topic --topic-pattern is required"),
        ((*FILES, "--topic-pattern=(", "--output=a"), "option 'subscribePattern' = '('"),
        ((*MIRROR, "--topic=a,b"), "argument --to-topic: names the copy of one topic"),
        ((*MIRROR, "--topic=a", "--to-topic="), "argument --to-topic: a topic must have 1 to"),
        ((*MIRROR, "--topic-pattern=a.*"), "argument --to-topic: names the copy of one topic"),
        ((*MIRROR, "--topic=a", "--topic-pattern=a"), "argument --topic-pattern: not allowed with"),
        (("lag_report",), "environment variable 'DAFKA_TOWER' = 'c:d': must"),
    ],
)
def test_an_invalid_argument_is_refused_before_anything_starts(
    run_here: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    if len(arguments) == 1:
        monkeypatch.setenv("DAFKA_TOWER", "c:d")
    code, _, err = run_here(*arguments)
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith(f"dafka job {arguments[0]}: {expected}")


def test_the_ends_of_many_partitions_are_summed_up() -> None:
    many = {TopicPartition("t", f"P{number}"): 5 for number in range(1_000)}
    assert ends(json.dumps(SourceOffset(many).as_json())) == {"partitions": 1_000, "records": 5_000}
    few = {TopicPartition("t", "A"): 5}
    assert ends(json.dumps(SourceOffset(few).as_json())) == {"t": {"A": 5}}


def test_sorted_rows_are_grouped_across_batches() -> None:
    rows = [("x", 1), ("x", 2), ("x", 2), ("x", 2), ("y", 2), ("y", None)]
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows], "n": range(6)})
    batches = [*table.slice(0, 2).to_batches(), *table.slice(2, 3).to_batches()]
    batches += table.slice(5).to_batches()
    groups = grouped(batches, ("a", "b"))
    found = [(key, [each["n"].to_pylist() for each in rows]) for key, rows in groups]
    assert found == [
        (("x", 1), [[0]]),
        (("x", 2), [[1], [2, 3]]),
        (("y", 2), [[4]]),
        (("y", None), [[5]]),
    ]
    assert [*grouped([], ("a",))] == []


RUNS_TWICE = re.compile("query runs twice|[Cc]oncurrent")  # the message of the sink, or of Spark

MKDIR = "An error occurred while calling o1.start.\n: java.io.IOException: mkdir failed\n\tat a.B"
FENCED = "dafka_core.errors.FencedError: topic 't': another attempt\n\nat b.C"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MKDIR, "^java.io.IOException: mkdir failed$"),
        (f"{MKDIR}\nCaused by: x.Y: full", "^x.Y: full$"),
        (": x.E: Failed to rename file:/a/metadata as destination already exists.", RUNS_TWICE),
        ("[C] The checkpoint location /a/c/offsets should be empty on batch 0\nP", RUNS_TWICE),
        ("[C] The checkpoint location /a/c/offsets should be empty on batch 0\nP", "/a/c is part"),
        (f"Traceback\ndafka_spark.errors.ColumnError: first\n{FENCED}", "^topic 't': another"),
        (f"Traceback\n{FENCED}", RUNS_TWICE),
    ],
)
def test_an_error_of_java_becomes_the_sentence_of_its_cause(
    text: str, sentence: str | re.Pattern[str]
) -> None:
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    assert re.search(sentence, describe_error(kind(text))[1])
    assert describe_error(ValueError("a defect")) == ("ValueError", "")


def test_a_job_whose_output_nothing_reads_ends() -> None:
    program = "from dafka_spark.job_support import print_json, run_job as run\n"
    program += "run(lambda: [print_json({'n': n}) for n in range(1 << 20)])"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b'{"n": 0}\n'
        process.stdout.close()
        assert (process.wait(JOB_TIMEOUT_S), process.stderr.read()) == (0, b"")


def test_a_missing_tower_is_one_sentence(run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_flights, "Producer", partial(Producer, tower_timeout_s=0.1))
    monkeypatch.setattr(replay_flights, "on_stop_signals", lambda _: None)
    name = "demo.replay_flights"
    code, _, err = run_here(name, "--tower=127.0.0.1:1:2", "--limit=5")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith(f"dafka job {name}: no tower answered at 127.0.0.1:1:2 within 0.1 s; ")


@pytest.mark.usefixtures("session")
def test_a_misspelt_topic_is_one_sentence(
    run_here: Run, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    copy = ("--to=y", f"--checkpoint={tmp_path}", "--available-now", f"--tower={cluster.tower}")
    code, _, err = run_here("topic_to_topic", "--topic=fligths", *copy)
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith(
        "dafka job topic_to_topic: option 'subscribe' = 'fligths': no store has topic 'fligths' "
        "(did you mean 'flights'?); failOnMissingTopic = false"
    )


class EndedSpark:
    """The writer and the query of a Spark that the same signal has ended."""

    lastProgress = None  # noqa: N815

    def option(self, *_: object) -> Any:
        return self

    def trigger(self, **_: object) -> Any:
        return self

    def start(self) -> Any:
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802
        signal.raise_signal(signal.SIGTERM)
        return True

    def stop(self) -> None:
        raise RuntimeError("Cannot call methods on a stopped SparkContext")


@pytest.mark.usefixtures("run_here")  # which restores the signals' handlers
def test_a_signal_that_also_ends_spark_is_no_error() -> None:
    writer: Any = EndedSpark()
    with pytest.raises(SystemExit) as ended:
        run_query(writer, Namespace(checkpoint="c", available_now=False))
    assert ended.value.code == 0
    with pytest.raises(Stopped):
        run_query(writer, Namespace(checkpoint="c", available_now=True))


@pytest.mark.nightly
def test_of_two_runs_of_one_job_one_continues(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Both write the same batch, which is written once; the later one reports the other."""
    command = [
        *(sys.executable, str(JOBS / "topic_to_topic.py"), f"--tower={cluster.tower}"),
        *("--topic=twice-in", "--to=twice-out", f"--checkpoint={tmp_path / 'checkpoint'}"),
    ]
    values: list[bytes] = []
    with ExitStack() as stack, Producer("twice-in", tower=cluster.tower) as producer:
        runs = {}
        for name in ("one", "two"):
            errors = stack.enter_context((tmp_path / name).open("w"))
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
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
        errors_of_late = runs[late].read_text()
        assert re.search(
            f"^topic_to_topic.py.*({RUNS_TWICE.pattern})", errors_of_late, re.MULTILINE
        )
