"""Row 15: Kafka's clients through a gateway, beside the same ones and an Apache Kafka broker.

Both keep records on the same disk. librdkafka runs in its own process with its defaults, so that
every record is acknowledged; Spark uses its Kafka connector.

A broker acknowledges records in memory, the gateway synced ones. So Spark also writes to a topic
whose broker syncs, and through the floor of a gateway (``bare_gateway``).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kafka.admin import KafkaAdminClient, NewTopic
from pyspark.sql import SparkSession

from benchmarks import bare_gateway, kafka_broker, spark_sessions
from benchmarks.bench_read import UNIT as ROWS
from benchmarks.bench_write import rows
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.harness import Bench
from dafka_core import EmbeddedCluster

FULL_RECORDS = 2_000_000

SIZE_BYTES = 100

PARTITIONS = 2

GOALS = {"produce": 0.5, "consume": 0.7}

SPARKS_GOAL = 0.5

SERVERS = "kafka.bootstrap.servers"


def run(bench: Bench) -> Iterator[Figure]:
    """Measure producing, then consuming."""
    records = bench.part(FULL_RECORDS)
    with gateway() as ours, kafka_broker.broker(partitions=PARTITIONS) as theirs:
        servers = {"gateway": ours, "broker": theirs}
        full = {side: topic() for side in servers}
        for side, server in servers.items():
            rate("produce", server, full[side], records)
        for what, goal in GOALS.items():
            sides = {
                side: partial(rate, what, server, full[side] if what == "consume" else "", records)
                for side, server in servers.items()
            }
            name = f"librdkafka, {what}, {SIZE_BYTES} B"
            rates = in_turns(name, sides, bench.pairs, warm_ups=bench.warm)
            yield compared(name, rates["gateway"], rates["broker"], unit="M records/s", goal=goal)
        with (
            bare_gateway.serving(PARTITIONS) as bare,
            spark_sessions.session(kafka_broker.sparks_jars()) as spark,
        ):
            yield sparks_read(spark, bench, servers, full, records)
            yield from sparks_write(spark, bench, {**servers, "bare": bare}, records)


def sparks_read(
    spark: SparkSession, bench: Bench, servers: dict[str, str], full: dict[str, str], records: int
) -> Figure:
    """Measure reading by Spark's connector."""
    sides = {
        side: partial(
            spark_sessions.read_rate,
            spark,
            "kafka",
            records,
            {SERVERS: server, "subscribe": full[side]},
        )
        for side, server in servers.items()
    }
    name = f"Spark's connector for Kafka, batch read, {SIZE_BYTES} B"
    rates = in_turns(name, sides, bench.pairs, warm_ups=bench.warm)
    return compared(name, rates["gateway"], rates["broker"], unit=ROWS, goal=SPARKS_GOAL)


def sparks_write(
    spark: SparkSession, bench: Bench, servers: dict[str, str], records: int
) -> Iterator[Figure]:
    """Measure writing to a new topic."""
    frame = rows(spark, records, SIZE_BYTES, tasks=PARTITIONS)

    def write(server: str, make: Callable[[], str]) -> float:
        options = {SERVERS: server, "topic": make()}
        return spark_sessions.rate(records, frame, "kafka", options)

    sides = {side: partial(write, server, topic) for side, server in servers.items()}
    sides["synced"] = partial(write, servers["broker"], partial(synced_topic, servers["broker"]))
    name = f"Spark's connector for Kafka, batch write, {SIZE_BYTES} B"
    rates = in_turns(name, sides, bench.pairs, warm_ups=bench.warm)
    for what, ours, theirs in (
        ("", "gateway", "broker"),
        (", beside a broker that syncs", "gateway", "synced"),
        (", the least a gateway does", "bare", "broker"),
    ):
        yield compared(name + what, rates[ours], rates[theirs], unit=ROWS, goal=SPARKS_GOAL)


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    """Yield the address of a store's gateway."""
    with EmbeddedCluster(kafka={"num_partitions": PARTITIONS}) as cluster:
        yield cluster.bootstrap_servers


def topic() -> str:
    """Return a new topic's name."""
    return f"bench-{uuid.uuid4().hex}"


def synced_topic(server: str) -> str:
    """Create a topic whose broker syncs each batch before it acknowledges it."""
    name = topic()
    admin = KafkaAdminClient(bootstrap_servers=server)
    try:
        new = NewTopic(name, PARTITIONS, 1, topic_configs={"flush.messages": "1"})
        admin.create_topics([new])
    finally:
        admin.close()
    return name


def rate(what: str, servers: str, name: str, records: int) -> float:
    """Return millions of records a second, of a new topic by default."""
    arguments = [what, servers, name or topic(), str(records), str(SIZE_BYTES), str(PARTITIONS)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka_client", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    os.sync()
    return records / float(done.stdout) / 1e6
