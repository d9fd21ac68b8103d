"""Row 15: Kafka's clients through a gateway, beside the same ones and an Apache Kafka broker.

Both keep records on the same disk. librdkafka runs in its own process with its defaults, so that
every record is acknowledged; Spark uses its Kafka connector.

A broker acknowledges records in memory, the gateway synced ones. So Spark also writes to a topic
whose broker syncs, and through the floor of a gateway (``bare_gateway``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

from kafka.admin import KafkaAdminClient, NewTopic
from pyspark.sql import SparkSession

from benchmarks import bare_gateway, kafka_broker, spark_sessions
from benchmarks.bench_read import UNIT as ROWS
from benchmarks.bench_write import rows
from benchmarks.figures import Figure, compared
from benchmarks.harness import Bench
from benchmarks.peers.measures import Client, new_topic
from dafka_core import EmbeddedCluster

FULL_RECORDS = 2_000_000

SIZE_BYTES = 100

PARTITIONS = 2

PRODUCE_GOAL = 0.5
CONSUME_GOAL = 0.7
SPARKS_GOAL = 0.5

SERVERS = "kafka.bootstrap.servers"


def run(bench: Bench) -> Iterator[Figure]:
    """Measure producing, then consuming."""
    records = bench.part(FULL_RECORDS)
    with gateway() as ours, kafka_broker.broker(partitions=PARTITIONS) as theirs:
        servers = {"gateway": ours, "broker": theirs}
        full = {side: new_topic() for side in servers}
        for side, server in servers.items():
            produce_rate(server, records, full[side])
        compare = partial(bench.compare, unit="M records/s", warm_ups=1)
        yield compare(
            f"librdkafka, produce, {SIZE_BYTES} B",
            partial(produce_rate, ours, records),
            partial(produce_rate, theirs, records),
            goal=PRODUCE_GOAL,
        )
        yield compare(
            f"librdkafka, consume, {SIZE_BYTES} B",
            partial(consume_rate, ours, records, full["gateway"]),
            partial(consume_rate, theirs, records, full["broker"]),
            goal=CONSUME_GOAL,
        )
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
    name = f"Spark's connector for Kafka, batch read, {SIZE_BYTES} B"
    read = partial(spark_sessions.read_rate, spark, "kafka", records)
    ours, theirs = (
        partial(read, {SERVERS: servers[side], "subscribe": full[side]})
        for side in ("gateway", "broker")
    )
    return bench.compare(name, ours, theirs, ROWS, SPARKS_GOAL, warm_ups=1)


def sparks_write(
    spark: SparkSession, bench: Bench, servers: dict[str, str], records: int
) -> Iterator[Figure]:
    """Measure writing to a new topic."""
    frame = rows(spark, records, SIZE_BYTES, tasks=PARTITIONS)

    def write(server: str, make: Callable[[], str]) -> float:
        options = {SERVERS: server, "topic": make()}
        return spark_sessions.rate(records, frame, "kafka", options)

    sides = {side: partial(write, server, new_topic) for side, server in servers.items()}
    sides["synced"] = partial(write, servers["broker"], partial(synced_topic, servers["broker"]))
    name = f"Spark's connector for Kafka, batch write, {SIZE_BYTES} B"
    rates = bench.in_turns(name, sides, warm_ups=1)
    for what, ours, theirs in (
        ("", "gateway", "broker"),
        (", beside a broker that syncs", "gateway", "synced"),
        (", the least a gateway does", "bare", "broker"),
    ):
        yield compared(name + what, rates[ours], rates[theirs], ROWS, SPARKS_GOAL)


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    """Yield the address of a store's gateway."""
    with EmbeddedCluster(kafka={"num_partitions": PARTITIONS}) as cluster:
        yield cluster.bootstrap_servers


def synced_topic(server: str) -> str:
    """Create a topic whose broker syncs each batch before it acknowledges it."""
    name = new_topic()
    admin = KafkaAdminClient(bootstrap_servers=server)
    try:
        new = NewTopic(name, PARTITIONS, 1, topic_configs={"flush.messages": "1"})
        admin.create_topics([new])
    finally:
        admin.close()
    return name


def produce_rate(server: str, records: int, topic: str = "") -> float:
    """Return millions of records a second, to a new topic by default."""
    return _rate("many", server, topic or new_topic(), records)


def consume_rate(server: str, records: int, topic: str) -> float:
    """Return millions of records a second of a topic that ``produce_rate`` has filled."""
    return _rate("consume", server, topic, records)


def _rate(what: str, server: str, topic: str, records: int) -> float:
    client = Client("kafka", what, server, topic, records, SIZE_BYTES, PARTITIONS)
    client.begin()
    seconds: float = client.result()["seconds"]
    os.sync()
    return records / seconds / 1e6
