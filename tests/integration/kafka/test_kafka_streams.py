"""Kafka Streams through the gateway counts records in the windows of their create times."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from benchmarks import kafka_broker
from dafka_core import EmbeddedCluster
from dafka_core.testing.waiting import PATIENCE_S
from tests.integration.kafka import maven

PROGRAM = Path(__file__).with_name("WindowCounts.java")
WINDOW_MS, WINDOWS, EACH = 10_000, 10, 100
TIMEOUT_S = 240

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    maven.fetch(kafka_broker.STREAMS)


@contextmanager
def gateway() -> Iterator[str]:
    with EmbeddedCluster(kafka=True) as cluster:
        yield cluster.bootstrap_servers


def produce(servers: str, begin_ms: int) -> None:
    """Write records to each window, in shuffled order."""
    numbers = [*range(WINDOWS * EACH)]
    random.Random(1).shuffle(numbers)
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        at_ms = begin_ms + number * WINDOW_MS // EACH
        producer.produce("t", b"%d" % number, b"key", timestamp=at_ms)
    assert producer.flush(PATIENCE_S) == 0


def window_counts(servers: str, directory: Path) -> dict[int, int]:
    """Return the counts of Kafka Streams by window, once it has counted every record."""
    jars = f"{kafka_broker.jars(kafka_broker.STREAMS)}/*"
    command = ["java", "-cp", jars, str(PROGRAM), servers, "t", str(directory)]
    counts: dict[int, int] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            start_ms, count = map(int, line.split())
            counts[start_ms] = count
            if sum(counts.values()) == WINDOWS * EACH:
                break
        process.kill()
    return counts


@pytest.mark.parametrize("servers", [gateway, partial(kafka_broker.broker, partitions=1)])
def test_windows_have_the_records_of_their_times_in_any_order(
    servers: Callable[[], AbstractContextManager[str]], tmp_path: Path
) -> None:
    """Through the gateway one window had 994 records and another one 6."""
    begin_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS - WINDOWS * WINDOW_MS
    with servers() as address:
        produce(address, begin_ms)
        found = window_counts(address, tmp_path)
    assert found == {begin_ms + number * WINDOW_MS: EACH for number in range(WINDOWS)}
