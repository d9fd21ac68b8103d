"""Queries of Spark: with format ``dafka``, and with Spark's own connector for Kafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks import bench_write, kafka_broker, processes, spark_sessions
from benchmarks.figures import turns
from benchmarks.peers.measures import Result, Rounds, Taken, new_topic, paced, served
from benchmarks.peers.systems import CLIENTS, Server, disk_bytes

SYSTEMS: Final = ("dafka", "kafka", "kafka-synced")  # those with a connector for Spark
TASKS: Final = 2  # tasks of a write, and partitions of Kafka's topics

WARM_UP_RECORDS: Final = 20_000
"""Spark ends a Python worker that has been idle for a minute: each system's turn starts its own."""

BATCHES: Final = 4  # micro-batches of a drain

Query = Callable[[], None]


def measure(
    systems: list[str], sizes: list[int], records: Callable[[int], int], rounds: int
) -> Iterator[Result]:
    """Measure writes, reads, drains and copies of each size."""
    systems = [system for system in systems if system in SYSTEMS]
    with spark_sessions.session(kafka_broker.sparks_jars()) as spark:
        for size_bytes in sizes:
            count, measured = records(size_bytes), Rounds(size_bytes, TASKS)
            for system in turns(systems, rounds):
                with served(system, TASKS) as server:
                    for _ in _queries(spark, system, server, WARM_UP_RECORDS, size_bytes):
                        pass
                    for row, one in _queries(spark, system, server, count, size_bytes):
                        measured.add(row, system, count, one)
            yield from measured.results()


def latency(
    systems: list[str],
    sizes: Sequence[int],
    rates: Sequence[float],
    seconds: float,
    rounds: int,
) -> Iterator[Result]:
    """Measure records through a streaming query from topic to topic, at some rates."""
    systems = [system for system in systems if system in SYSTEMS]
    with spark_sessions.session(kafka_broker.sparks_jars()) as spark:
        for size_bytes in sizes:
            measured = Rounds(size_bytes, 1)
            for system in turns(systems, rounds):
                with served(system, 1) as server:
                    for per_second in rates:
                        one = _through_a_query(
                            spark, system, server, per_second, seconds, size_bytes
                        )
                        row = f"latency at {per_second:,.0f}/s, topic to topic by Spark"
                        measured.add(row, system, int(per_second * seconds), one)
            yield from measured.results()


def _through_a_query(
    spark: SparkSession,
    system: str,
    server: Server,
    per_second: float,
    seconds: float,
    size_bytes: int,
) -> Taken:
    form, place = _connector(system, server)
    sink = new_topic()
    with contextlib.ExitStack() as stack:

        def start(source: str) -> str:
            full = {**place, "subscribe": source, "startingOffsets": "earliest"}
            frame = spark.readStream.format(form).options(**full).load().select("value")
            checkpoint = str(Path(server.directory) / new_topic())
            options = {**place, "topic": sink, "checkpointLocation": checkpoint}
            query = frame.writeStream.format(form).options(**options).start()
            stack.callback(query.stop)
            query.processAllAvailable()
            return sink

        return paced(system, server, per_second, seconds, size_bytes, through=start)


def _connector(system: str, server: Server) -> tuple[str, dict[str, str]]:
    """Return the format's name, and the option with the server's address."""
    form = CLIENTS[system]
    return form, {"tower" if form == "dafka" else "kafka.bootstrap.servers": server.address}


def _queries(
    spark: SparkSession, system: str, server: Server, count: int, size_bytes: int
) -> Iterator[tuple[str, Taken]]:
    form, place = _connector(system, server)
    topic = new_topic()
    full = {**place, "subscribe": topic, "startingOffsets": "earliest"}
    frame = bench_write.rows(spark, count, size_bytes, tasks=TASKS)
    run = partial(_measured, server, count)

    def write() -> None:
        frame.write.format(form).mode("append").options(**place, topic=topic).save()

    def read(**options: str) -> None:
        source = spark.read.format(form).options(**full, **options).load()
        source.write.format("noop").mode("append").save()

    yield "Spark batch write", run(write)
    yield "Spark batch read", run(read)
    if form == "dafka":
        yield "Spark batch read, Flight", run(partial(read, fetch="flight"))
    limit = {"maxOffsetsPerTrigger": str(count // BATCHES)}
    drain = partial(_drained, spark, server, form, {**full, **limit})
    yield "drain in 4 batches", run(partial(drain, "noop", {}))
    yield "topic to topic", run(partial(drain, form, {**place, "topic": new_topic()}))


def _drained(
    spark: SparkSession,
    server: Server,
    form: str,
    source: dict[str, Any],
    sink_form: str,
    sink: dict[str, str],
) -> None:
    frame = spark.readStream.format(form).options(**source).load().select("value")
    checkpoint = str(Path(server.directory) / new_topic())
    writer = frame.writeStream.format(sink_form).options(**sink, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def _measured(server: Server, count: int, query: Query) -> Taken:
    def clients() -> list[int]:
        return [each.pid for each in processes.below_this_one() if each.pid not in server.pids]

    before = disk_bytes(server.directory)
    with processes.Cost(lambda: server.pids) as of_server, processes.Cost(clients) as of_client:
        began_s = time.perf_counter()
        query()
        seconds = time.perf_counter() - began_s
    millions = count / 1e6
    return Taken(
        rate=count / seconds,
        client_cpu_s=of_client.cpu_s / millions,
        server_cpu_s=of_server.cpu_s / millions,
        client_mb=of_client.peak_mb,
        server_mb=of_server.peak_mb,
        disk_bytes=max(disk_bytes(server.directory) - before, 0) / count,
    )
