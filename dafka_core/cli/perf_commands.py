"""``dafka perf``: throughput of publishing, of a consumer, and of bulk reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, Final

import click

import dafka_core
from dafka_core.cli import consume_command, flags, output
from dafka_core.cli.consume_command import Range
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.config.node_options import ConsumerOptions, ProducerOptions, ReaderOptions
from dafka_core.model.records import RecordBatch

_COLUMNS: Final = ("what", "records", "bytes", "seconds", "records_per_s", "mb_per_s")


def perf() -> None:
    """Measure a cluster's throughput: publish, consume, read in bulk."""


@flags.topic_argument
@flags.option(
    "--count",
    type=click.IntRange(1),
    default=1_000_000,
    metavar="N",
    help="Number of records to publish.",
)
@flags.option(
    "--size", type=click.IntRange(0, 1 << 20), default=100, metavar="N", help="Bytes per value."
)
@flags.option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=1_000,
    metavar="N",
    help="Records per call of the producer.",
)
@flags.json_option
@flags.table_options(ProducerOptions)
def produce(topic: str, *, count: int, size: int, batch: int, **options: Any) -> None:
    """Publish random records, and measure the time until stores have acknowledged them."""
    from dafka_core.model.values import Values

    values = Values.of([os.urandom(size) for _ in range(min(batch, count))])
    with dafka_core.Producer(topic, **options) as producer:
        started_s = time.monotonic()
        with output.progress(count, "records") as advance:
            for start in range(0, count, batch):
                part = values[: min(batch, count - start)]
                producer.publish_many(part)
                advance(len(part))
        published_s = time.monotonic()
        producer.flush(600.0)
        acknowledged_s = time.monotonic()
    rows = [
        _row("published", count, count * size, published_s - started_s),
        _row("acknowledged", count, count * size, acknowledged_s - started_s),
    ]
    output.table(_COLUMNS, rows)


@flags.topic_argument
@flags.json_option
@flags.timeout_option
@flags.table_options(ConsumerOptions)
def consume(topic: str, *, timeout_s: float, **options: Any) -> None:
    """Read a topic from its earliest record to its current end with a consumer."""
    finder = StoreFinder("", timeout_s, ReaderOptions.declared_in(options))
    with consume_command.open_stored_records(finder) as stored:
        total = sum(each.end - each.earliest for each in stored.of_topic(topic))
    started_s = time.monotonic()
    with dafka_core.Consumer(start="earliest", **ConsumerOptions.declared_in(options)) as consumer:
        consumer.subscribe(topic)
        row = _read("consumed", consumer.batches(), total, started_s)
    output.table(_COLUMNS, [row])


@flags.topic_argument
@flags.reads_stores
def store(topic: str, *, finder: StoreFinder) -> None:
    """Read a topic from stores in bulk, as Spark and 'consume --exit-at-end' do."""
    with consume_command.open_stored_records(finder) as stored:
        ranges = [Range(each, each.earliest, each.end) for each in stored.of_topic(topic)]
        batches = (batch for each in ranges for batch in stored.read(each))
        row = _read("read", batches, sum(each.count for each in ranges), time.monotonic())
    output.table(_COLUMNS, [row])


def _read(
    what: str, batches: Iterable[RecordBatch], total: int, started_s: float
) -> tuple[object, ...]:
    count = size = 0
    with output.progress(total, "records") as advance:
        for batch in batches if total else ():
            count, size = count + batch.count, size + batch.values.size_bytes
            advance(batch.count)
            if count >= total:
                break
    return _row(what, count, size, time.monotonic() - started_s)


def _row(what: str, count: int, size: int, took_s: float) -> tuple[object, ...]:
    took_s = max(took_s, 1e-9)
    rate, megabytes = count / took_s, size / took_s / 1e6
    return what, count, size, round(took_s, 3), round(rate), round(megabytes, 1)
