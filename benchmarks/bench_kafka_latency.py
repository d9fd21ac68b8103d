"""Row 26: how long a Kafka client waits for one acknowledged record, beside one sync of the disk.

librdkafka sends a record of 100 bytes when the previous one is acknowledged by all replicas, and
commits an offset after another; or waits until Spark's connector, in Real-Time Mode, has written it
to a second topic. Measured in turns: the gateway, ``fdatasync`` of a page in a file
of the same directory, an append to a bare log, which LMDB syncs twice, and a broker, which does not
sync, if Maven can fetch it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from benchmarks import kafka_broker, spark_sessions
from benchmarks.bench_kafka import PARTITIONS, SERVERS, SIZE_BYTES, gateway
from benchmarks.figures import Figure, compared, tell, turns
from benchmarks.harness import Bench
from benchmarks.peers.measures import new_topic
from dafka_core.model import records as model
from dafka_core.storage import Log

FULL_TIMES = 300  # records of each side in a pair

WARM_UP = 20

WAIT_S = 60.0

PAGE_BYTES = 4_096

BATCH = "60 seconds"  # longer than a measurement: a new micro-batch starts new tasks
GOALS = {"sync": 1.5, "log": 2.0, "broker": 2.0}  # the most of a reference's time

PERCENTILES = {"p50": 49, "p99": 98}

Act = Callable[[], object]

Side = Callable[[int], list[float]]  # returns how long each of some calls takes, in milliseconds


def run(bench: Bench) -> Iterator[Figure]:
    """Measure records, then commits."""
    times = bench.part(FULL_TIMES, 2 * WARM_UP)
    with contextlib.ExitStack() as opened:
        servers = {"gateway": opened.enter_context(gateway())}
        try:
            servers["broker"] = opened.enter_context(kafka_broker.broker(partitions=PARTITIONS))
        except RuntimeError as error:
            tell(f"kafka_latency: without a broker: {error}")
        disk = {
            "sync": opened.enter_context(page_syncs(bench)),
            "log": opened.enter_context(appends(bench)),
        }
        records = {side: single_records(server) for side, server in servers.items()}
        commits = {
            side: opened.enter_context(single_commits(server)) for side, server in servers.items()
        }
        yield from figures("one record, acks=all", records | disk, bench.pairs, times)
        yield from figures("one commit of an offset", commits | disk, bench.pairs, times)
        if "broker" not in servers:  # Spark's connector comes with it
            return
        with spark_sessions.session(kafka_broker.sparks_jars()) as spark:
            copies = {
                side: partial(copied, spark, server, bench) for side, server in servers.items()
            }
            yield from figures("a record through Real-Time Mode", copies, bench.pairs, times)


def figures(what: str, sides: Mapping[str, Side], pairs: int, times: int) -> Iterator[Figure]:
    """Compare the gateway's percentiles with those of each reference."""
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for side in turns(sides, pairs):
        found[side].append(sides[side](times))
    for percentile, at in PERCENTILES.items():
        ours, *others = (
            [statistics.quantiles(each, n=100)[at] for each in of_side]
            for of_side in found.values()
        )
        for side, reference in zip(list(sides)[1:], others, strict=True):
            name = f"librdkafka, {what}, {percentile}, beside {side}"
            yield compared(name, ours, reference, "ms", goal=1 / GOALS[side])


def timed(act: Act) -> Side:
    """Return a function that measures calls."""
    return lambda times: [_timed(act) for _ in range(WARM_UP + times)][WARM_UP:]


def _timed(act: Act) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1_000


def quiet(servers: str) -> dict[str, str | int | float | bool]:
    """Return a client's options; it does not report that the server ends before it."""
    return {"bootstrap.servers": servers, "log_level": 2}


def single_records(servers: str) -> Side:
    """Return a function that produces a record and waits for its acknowledgement."""
    name, value = new_topic(), os.urandom(SIZE_BYTES)
    producer = Producer({**quiet(servers), "acks": "all", "linger.ms": 0})
    producer.list_topics(name, timeout=WAIT_S)

    def act() -> None:
        errors: list[object] = []
        producer.produce(
            name, value, partition=0, on_delivery=lambda error, _: errors.append(error)
        )
        producer.poll(WAIT_S)
        if errors != [None]:
            raise RuntimeError(f"a record was not acknowledged: {errors}")

    return timed(act)


@contextlib.contextmanager
def single_commits(servers: str) -> Iterator[Side]:
    """Yield a function that commits an offset and waits for the response."""
    name, offsets = new_topic(), count()
    Producer(quiet(servers)).list_topics(name, timeout=WAIT_S)
    group = uuid.uuid4().hex
    consumer = Consumer({**quiet(servers), "group.id": group, "enable.auto.commit": False})

    def act() -> None:
        offset = TopicPartition(name, 0, next(offsets))
        consumer.commit(offsets=[offset], asynchronous=False)

    yield timed(act)
    consumer.close()


def copied(spark: SparkSession, servers: str, bench: Bench, times: int) -> list[float]:
    """Measure how long a query takes to copy each record to a second topic.

    It has a task for each partition at all times, so that only one query can run.
    """
    source, target, value = new_topic(), new_topic(), os.urandom(SIZE_BYTES)
    producer = Producer({**quiet(servers), "linger.ms": 0})
    for name in (source, target):
        producer.list_topics(name, timeout=WAIT_S)
    options = {SERVERS: servers, "kafka.linger.ms": "0"}
    reader = spark.readStream.format("kafka").options(**options, startingOffsets="earliest")
    writer = reader.option("subscribe", source).load().select("value").writeStream
    checkpoint = str(bench.directory / target)
    writer = writer.format("kafka").options(**options, checkpointLocation=checkpoint)
    writer = writer.option("topic", target).outputMode("update")
    query = writer.trigger(realTime=BATCH).start()  # type: ignore[call-overload]
    consumer = Consumer({**quiet(servers), "group.id": target, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(target, number, 0) for number in range(PARTITIONS)])

    def act() -> None:
        producer.produce(source, value, partition=0)
        producer.poll(0)
        message = consumer.poll(WAIT_S)
        if message is None or message.error():
            raise RuntimeError(f"no copy came: {query.exception()}")

    try:
        return timed(act)(times)
    finally:
        query.stop()
        consumer.close()


@contextlib.contextmanager
def page_syncs(bench: Bench) -> Iterator[Side]:
    """Yield a function that overwrites a page and syncs it."""
    path = bench.directory / "page"
    path.write_bytes(bytes(PAGE_BYTES))
    file = os.open(path, os.O_RDWR)
    os.fsync(file)

    def act() -> None:
        os.pwrite(file, os.urandom(PAGE_BYTES), 0)
        os.fdatasync(file)

    yield timed(act)
    os.close(file)


@contextlib.contextmanager
def appends(bench: Bench) -> Iterator[Side]:
    """Yield a function that appends a record to a log."""
    tp, value, offsets = model.TopicPartition("t", "A"), os.urandom(SIZE_BYTES), count()
    with Log(bench.directory / "bare-log") as log:
        yield timed(lambda: log.append([model.RecordBatch.of(tp, next(offsets), [value])]))
