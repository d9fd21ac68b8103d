"""How jobs end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.testing import wait_until
from dafka_spark.jobs.support.job_exit import _told
from tests.spark.jobs.programs import (
    JOB_TIMEOUT_S,
    JOBS,
    count,
    finished,
)

RUNS_TWICE = re.compile("query runs twice at once|[Cc]oncurrent")
"""What the sink says, or Spark."""


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
