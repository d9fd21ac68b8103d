"""``dafka perf``: throughput of publishing, of a consumer, and of bulk reads."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import click

from dafka_core.cli import consume_command, output
from dafka_core.cli.consume_command import Range
from dafka_core.cli.flags import (
    json_option,
    of_table,
    option,
    reads_stores,
    table_options,
    timeout_option,
    topic_argument,
)
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.config.node_options import ConsumerOptions, ProducerOptions, ReaderOptions

_COLUMNS: Final = ("what", "records", "bytes", "seconds", "records_per_s", "mb_per_s")


def perf() -> None:
    """Measure a cluster's throughput: publish, consume, read in bulk."""


@topic_argument
@option(
    "--count",
    type=click.IntRange(1),
    default=1_000_000,
    metavar="N",
    help="Number of records to publish.",
)
@option(
    "--size", type=click.IntRange(0, 1 << 20), default=100, metavar="N", help="Bytes per value."
)
@option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=1_000,
    metavar="N",
    help="Records per call of the producer.",
)
@json_option
@table_options(ProducerOptions)
def produce(topic: str, *, count: int, size: int, batch: int, **options: Any) -> None:
    """Publish random records, and measure the time until stores have acknowledged them."""
    from dafka_core import Producer
    from dafka_core.model.values import Values

    values = Values.of([os.urandom(size) for _ in range(min(batch, count))])
    with Producer(topic, **options) as producer:
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


@topic_argument
@json_option
@timeout_option
@table_options(ConsumerOptions)
def consume(topic: str, *, timeout_s: float, **options: Any) -> None:
    """Read a topic from its earliest record to its current end with a consumer."""
    from dafka_core import Consumer

    finder = StoreFinder("", timeout_s, of_table(ReaderOptions, options))
    with consume_command.open_stored_records(finder) as stored:
        total = sum(each.end - each.earliest for each in stored.of_topic(topic))
    count = size = 0
    started_s = time.monotonic()
    given = of_table(ConsumerOptions, options)
    with Consumer(start="earliest", **given) as consumer:
        consumer.subscribe(topic)
        with output.progress(total, "records") as advance:
            for batch in consumer.batches():
                count, size = count + batch.count, size + batch.values.size_bytes
                advance(batch.count)
                if count >= total:
                    break
        took_s = time.monotonic() - started_s
    output.table(_COLUMNS, [_row("consumed", count, size, took_s)])


@topic_argument
@reads_stores
def store(topic: str, *, finder: StoreFinder) -> None:
    """Read a topic from stores in bulk, as Spark and 'consume --exit-at-end' do."""
    count = size = 0
    with consume_command.open_stored_records(finder) as stored:
        infos = stored.of_topic(topic)
        total = sum(each.end - each.earliest for each in infos)
        started_s = time.monotonic()
        with output.progress(total, "records") as advance:
            for info in infos:
                for batch in stored.read(Range(info, info.earliest, info.end)):
                    count, size = count + batch.count, size + batch.values.size_bytes
                    advance(batch.count)
        took_s = time.monotonic() - started_s
    output.table(_COLUMNS, [_row("read", count, size, took_s)])


def _row(what: str, count: int, size: int, took_s: float) -> tuple[object, ...]:
    took_s = max(took_s, 1e-9)
    rate, megabytes = count / took_s, size / took_s / 1e6
    return what, count, size, round(took_s, 3), round(rate), round(megabytes, 1)
