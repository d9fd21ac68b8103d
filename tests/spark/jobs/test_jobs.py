"""The jobs as programs, against a real cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pyspark
import pytest
from chispa import assert_df_equality
from demo.compare import row_differences
from flight_delays import RESULT_KEY, delays, from_records, latest_results, parse_flights
from flight_records import ORIGINS, address_of, load_flights
from job_exit import _told
from job_session import ends
from pyspark.sql import DataFrame, SparkSession
from topic_to_parquet import as_text

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.records import TopicPartition
from dafka_core.testing import wait_until
from tests.spark.jobs.conftest import ROOT

JOBS = ROOT / "jobs"
SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
PROGRAMS = sorted(path.name for path in JOBS.glob("*.py") if "__main__" in path.read_text())

FLIGHTS = 3000

RUNS_TWICE = re.compile("the query runs twice at once|[Cc]oncurrent")
"""What the sink says, or Spark."""

# A Spark driver starts, runs and stops in this time many times over, even on a busy machine.
JOB_TIMEOUT_S = 240


def test_a_batch_of_many_partitions_is_summed_up() -> None:
    many = {TopicPartition("t", f"P{number}"): 5 for number in range(1_000)}
    assert ends(json.dumps(SourceOffset(many).as_json())) == {"partitions": 1_000, "records": 5_000}
    few = {TopicPartition("t", "A"): 5}
    assert ends(json.dumps(SourceOffset(few).as_json())) == {"t": {"A": 5}}


def run(*command: str, **settings: Any) -> list[dict[str, Any]]:
    """Runs a program to its end; returns the lines of JSON that it printed."""
    done = finished(*command, **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    # spark-submit puts the program's warnings among its output.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def finished(*command: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end, well or not."""
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, **settings
    )


def job(name: str, *arguments: str) -> list[dict[str, Any]]:
    """Runs a job with this Python."""
    return run(sys.executable, str(JOBS / name), *arguments)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster whose topic ``flights`` holds the first flights, fed in two goes."""
    with EmbeddedCluster() as cluster:
        for limit in (1000, FLIGHTS):
            feed = ("--resume", f"--tower={cluster.tower}", f"--limit={limit}")
            *_, done = job("replay_flights.py", *feed)
            assert sum(entry["records"] for entry in done["partitions"]) == limit
        yield cluster


def read_topic(session: SparkSession, cluster: EmbeddedCluster, topic: str) -> DataFrame:
    """The topic as a batch."""
    reader = session.read.format("dafka").option("tower", cluster.tower)
    return reader.option("subscribe", topic).load()


def values_of(records: DataFrame) -> list[bytes]:
    """The values, sorted."""
    return sorted(bytes(row.value) for row in records.select("value").collect())


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_job_explains_itself(program: str) -> None:
    done = finished(sys.executable, str(JOBS / program), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage:")
    assert "--" in done.stdout
    assert done.stderr == ""


COPY = ("topic_to_topic.py", "--checkpoint=unused", "--to=y")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("replay_flights.py", "--limit", "0"), "argument --limit: must be a whole number of at"),
        (("replay_flights.py", "--rate", "-5"), "argument --rate: must be a number, 0 or more"),
        (("replay_flights.py", "--rate", "nan"), "argument --rate: must be a number, 0 or more"),
        (("replay_flights.py", "--tower", "a:b"), "option 'tower' = 'a:b': must be HOST"),
        (("replay_flights.py", "--rates", "5", "--frm"), "unrecognized arguments: "),
        ((*COPY, "--topic=x,y"), "--to y: the job would read what it writes"),
        ((*COPY, "--topic="), "option 'subscribe' = '': a topic must have 1 to 255 bytes"),
        ((*COPY, "--topic=x", "--acks=none"), "option 'acks' = 'none': must be a whole number"),
        ((*COPY, "--topic=x", "--starting-offsets=never"), "option 'startingOffsets' = 'never'"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(
    arguments: tuple[str, ...], expected: str
) -> None:
    name, *others = arguments
    done = finished(sys.executable, str(JOBS / name), *others)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name}: {expected}")


def test_a_wrong_variable_of_the_environment_is_named() -> None:
    environment = {**os.environ, "DAFKA_TOWER": "a:b"}
    done = finished(sys.executable, str(JOBS / "replay_flights.py"), env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("replay_flights.py: environment variable 'DAFKA_TOWER' = 'a:b': must")


def test_a_tower_that_is_not_there_is_one_sentence() -> None:
    nobody = ("--tower=127.0.0.1:1:2", "--limit=5")
    done = finished(sys.executable, str(JOBS / "replay_flights.py"), *nobody)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("replay_flights.py: no tower answered at 127.0.0.1:1:2 within 10 s; ")


def test_an_error_of_java_is_told_by_its_cause() -> None:
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    said = (
        "An error occurred while calling o1.start.\n: java.io.IOException: mkdir failed\n\tat a.B"
    )
    assert _told(kind(said)) == ("Py4JJavaError", "java.io.IOException: mkdir failed")
    assert _told(kind(f"{said}\nCaused by: x.Y: full")) == ("Py4JJavaError", "x.Y: full")
    twice = ": x.Exists: Failed to rename file:/a/metadata as destination already exists."
    assert RUNS_TWICE.search(_told(kind(twice))[1])
    written = (
        "[A_CONDITION] The checkpoint location /a/c/offsets should be empty on batch 0\nPlease"
    )
    assert RUNS_TWICE.search(_told(kind(written))[1])
    assert "checkpoint /a/c is part" in _told(kind(written))[1]
    between = "Traceback\ndafka_core.errors.FencedError: topic 't': another attempt\n\nat b.C"
    assert RUNS_TWICE.search(_told(kind(between))[1])
    assert _told(ValueError("a defect")) == ("ValueError", "")


def test_a_replay_that_is_stopped_ends_by_the_signal(cluster: EmbeddedCluster) -> None:
    slow = ("--rate=1", "--topic=slow", f"--tower={cluster.tower}")
    command = [sys.executable, str(JOBS / "replay_flights.py"), *slow]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as replay:
        with Reader(tower=cluster.tower) as reader:
            wait_until(lambda: reader.partitions(["slow"], timeout_s=30))
        replay.send_signal(signal.SIGINT)
        _, said = replay.communicate(timeout=JOB_TIMEOUT_S)
    assert replay.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said


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


def test_a_replay_resumes_after_the_last_flight(cluster: EmbeddedCluster) -> None:
    flights = load_flights(FLIGHTS)
    with Reader(tower=cluster.tower) as reader:
        for origin in ORIGINS:
            expected = flights.from_origin(origin)
            tp = TopicPartition("flights", address_of("flights", origin))
            batches = reader.read(tp, 0, len(expected), timeout_s=30)
            assert [value for batch in batches for value in batch.values] == expected
        partitions = reader.partitions(["flights"], timeout_s=30)
    assert {entry.partition: entry.end for entry in partitions} == {
        address_of("flights", origin): len(flights.from_origin(origin)) for origin in ORIGINS
    }


def test_flight_delays_writes_the_same_to_topic_and_parquet(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    batches = job(
        "flight_delays.py",
        f"--tower={cluster.tower}",
        f"--checkpoint={tmp_path / 'checkpoint'}",
        f"--output={tmp_path / 'delays'}",
        "--max-offsets-per-trigger=1600",
        "--available-now",
    )
    assert sum(batch["records"] for batch in batches) == FLIGHTS
    assert sum(batch["records"] > 0 for batch in batches) == 2
    assert {(batch["late"], batch["malformed"] or 0) for batch in batches} == {(0, 0)}

    flights = parse_flights(read_topic(session, cluster, "flights"))
    expected = delays(flights).toArrow().to_pylist()
    assert sum(row["flights"] for row in expected) == FLIGHTS
    outputs = {
        "topic": from_records(read_topic(session, cluster, "delays")),
        "parquet": session.read.parquet(str(tmp_path / "delays")),
    }
    for name, results in outputs.items():
        rows = latest_results(results).drop("batch").toArrow().to_pylist()
        assert row_differences(name, RESULT_KEY, expected, rows) == []


def test_topic_to_parquet_keeps_every_record_once(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """By spark-submit, with the packages as a zip."""
    packages = tmp_path / "packages.zip"
    with zipfile.ZipFile(packages, "w") as archive:
        for path in chain(ROOT.glob("dafka_*/**/*.py"), ROOT.glob("pyspark_dafka/*.py")):
            archive.write(path, path.relative_to(ROOT))
    command = [
        *(SPARK_SUBMIT, "--conf=spark.ui.enabled=false", f"--py-files={packages}"),
        *(str(JOBS / "topic_to_parquet.py"), "--topic=flights", "--text", "--available-now"),
        *(f"--tower={cluster.tower}", f"--checkpoint={tmp_path / 'checkpoint'}"),
        f"--output={tmp_path / 'files'}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    (batch,) = run(*command, cwd=tmp_path, env=environment)
    assert batch["records"] == FLIGHTS
    kept = session.read.parquet(str(tmp_path / "files"))
    assert kept.where("timestamp is null").count() == 0
    source = read_topic(session, cluster, "flights")
    rows = as_text(source).select(kept.columns)
    assert_df_equality(kept, rows, ignore_row_order=True, ignore_nullable=True)


def test_topic_to_topic_copies_what_is_asked_for(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job(
        "topic_to_topic.py",
        f"--tower={cluster.tower}",
        "--topic=flights",
        "--to=late",
        f"--checkpoint={tmp_path / 'checkpoint'}",
        "--where=get_json_object(text, '$.dep_delay_min') > 60",
        "--value=get_json_object(text, '$.tailnum')",
        "--available-now",
    )
    flights = [json.loads(value) for value in load_flights(FLIGHTS).values]
    expected = [f["tailnum"].encode() for f in flights if (f["dep_delay_min"] or 0) > 60]
    assert len(expected) > 50
    assert values_of(read_topic(session, cluster, "late")) == sorted(expected)


def test_of_two_runs_of_one_job_one_goes_on(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Both write the same batch, which is there once; who comes too late is told."""
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


def count(reader: Reader, topic: str) -> int:
    """How many records a topic has."""
    return sum(each.end for each in reader.partitions([topic], timeout_s=30))
