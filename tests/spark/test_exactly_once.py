"""Each row of a streaming query is in its topic once, whatever fails and is repeated."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dafka_core.testing import wait_until
from tests.spark import drivers
from tests.spark.faults import Gate, changed, shuffled
from tests.spark.topics import TIMEOUT_S, Topics, finished, forget_last_commit, start, texts


@pytest.mark.parametrize(
    ("master", "executors"),
    [("local[2,4]", 1), pytest.param("local-cluster[2,1,1024]", 2, marks=pytest.mark.nightly)],
)
def test_tasks_that_fail_and_are_repeated(
    topics: Topics, topic: str, tmp_path: Path, master: str, executors: int
) -> None:
    """Each task fails twice, at any row; each attempt has its rows in another order."""
    topics.produce(topic, range(10_000))
    found = drivers.printed(
        drivers.copy_with_failures,
        master,
        topic,
        tmp_path,
        variables={"DAFKA_TOWER": topics.cluster.tower},
    )
    assert found == {"batches": 3, "executors": executors}
    sinks = [f"{topic}-out-{index}" for index in range(3)]
    assert topics.numbers(*sinks) == [*range(10_000)]
    assert topics.batch(*sinks).select("topic", "partition").distinct().count() == 6
    assert topics.proved(tmp_path / "checkpoint") == [0, 1, 2]
    assert topics.numbers(f"{topic}-batch") == [*range(10_000)]


@pytest.mark.nightly
def test_speculation_is_refused(topics: Topics, topic: str) -> None:
    """Two attempts of a task would write to one partition at a time."""
    assert drivers.printed(drivers.speculate, topics.cluster.tower, topic)
    assert topics.numbers(topic) == []


def test_a_batch_appears_at_once(topics: Topics, topic: str, tmp_path: Path) -> None:
    """No row of it is visible while a task runs, and each is there once after a repetition."""
    address = topics.produce(topic, range(30))
    gate = Gate(tmp_path, batch=1)
    rows = topics.stream(topic, maxOffsetsPerTrigger=10, maxRecordsPerPartition=5)
    frame = rows.selectExpr("value", f"concat('{topic}-', int(string(value)) % 2) AS topic")
    sinks = [f"{topic}-0", f"{topic}-1"]
    checkpoint = tmp_path / "checkpoint"
    query = start(topics.writer(changed(frame, gate), audit=True), checkpoint)
    gate.wait_reached()
    assert topics.visible(*sinks) == [5, 5]
    gate.open()
    finished(query)
    assert topics.visible(*sinks) == [15, 15]
    forget_last_commit(checkpoint)
    topics.produce(topic, range(30, 40), address)
    repeated = topics.send(changed(frame, shuffled), checkpoint, audit=True)
    assert [progress.batchId for progress in repeated.recentProgress][:2] == [2, 3]
    assert topics.proved(checkpoint) == [0, 1, 2, 3]
    assert topics.numbers(*sinks) == [*range(40)]
    # A query keeps its partitions: one for each task and topic.
    assert topics.batch(*sinks).select("topic", "partition").distinct().count() == 4


@pytest.mark.nightly
def test_a_driver_is_killed_and_restarts_with_other_cores(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """With default options and adaptive execution, while one task works and others are done."""
    sink = f"{topic}-out"
    # Random, as adaptive execution cuts values that compress well into one task.
    wanted = [f"{number:04d}{os.urandom(2_500).hex()}" for number in range(3_000)]
    topics.produce(topic, wanted)
    arguments = (topics.cluster.tower, topic, tmp_path)
    (tmp_path / "hold").touch()
    command = drivers.command(drivers.repartition, *arguments, 6)
    with subprocess.Popen(command, start_new_session=True) as driver:
        try:
            wait_until((tmp_path / "held").exists, timeout_s=TIMEOUT_S)
            with topics.store() as client:

                def others_are_done() -> bool:
                    staged = client.staged(timeout_s=TIMEOUT_S)
                    return sum(each.topic == sink for each in staged) >= 3

                wait_until(others_are_done, timeout_s=TIMEOUT_S)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert topics.visible(sink) == [0]
    (tmp_path / "hold").unlink()
    for cores in (2, 5):
        drivers.done(drivers.command(drivers.repartition, *arguments, cores))
        assert texts(topics.batch(sink).collect()) == wanted
        forget_last_commit(tmp_path / "checkpoint")
