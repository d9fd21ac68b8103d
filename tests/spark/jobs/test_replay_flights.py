"""Flights fed: again, and stopped."""

from __future__ import annotations

import signal
import subprocess
import sys

from dafka_core import EmbeddedCluster, Reader
from dafka_core.records import TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.jobs.support.flight_records import ORIGINS, address_of, load_flights
from tests.spark.jobs.programs import (
    FLIGHTS,
    JOB_TIMEOUT_S,
    JOBS,
)


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
