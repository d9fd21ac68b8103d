"""Rows with keys, headers and null values, from the sink to a store and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.testing import PATIENCE_S
from dafka_spark.errors import ApplicationError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.rows import write_rows
from dafka_spark.sink.writer import DafkaBatchWriter
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.integration.cluster.batch_job import seen
from tests.integration.cluster.transactions import PARTITION, commit, factory, held, options
from tests.unit.dafka_spark.tasks import Task

HEADERS = [[("trace", b"\x01"), ("trace", None)], None, [], [("", b"")]]
ROWS: dict[str, list[Any]] = {
    "key": [b"k", None, b"", None],
    "value": [b"v", b"bare", None, closed(b"looks like one", b"k")],
    "headers": [[{"key": key, "value": value} for key, value in row or ()] for row in HEADERS],
}
CONTENTS = [
    closed(value, key, headers or ())
    for key, value, headers in zip(ROWS["key"], ROWS["value"], HEADERS, strict=True)
]


def batch(rows: dict[str, list[Any]]) -> pa.RecordBatch:
    types = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS_TYPE}
    return pa.record_batch({name: pa.array(rows[name], kind) for name, kind in types.items()})


def read(cluster: EmbeddedCluster, topic: str, **given: str) -> dict[str, list[Any]]:
    """Read rows as a batch query does."""
    options = SourceOptions.of({"tower": cluster.tower, "subscribe": topic, **given})
    reader = DafkaBatchReader(full(headers=True), options)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    found = pa.Table.from_batches(batches).select(list(ROWS)).to_pydict()
    return {**found, "headers": [row or [] for row in found["headers"]]}


@pytest.mark.parametrize("fetch", ["flight", "local", "mesh"])
def test_every_source_returns_the_rows_that_were_written(
    shared: EmbeddedCluster, topic: str, fetch: str
) -> None:
    chosen = options(shared, topic=topic)
    with factory(chosen) as task:
        written = write_rows(iter([batch(ROWS)]), chosen, lambda _: PARTITION, task.open)
        commit(chosen, task.picked, *written)
    assert held(shared, topic).values == CONTENTS
    assert read(shared, topic, fetch=fetch) == ROWS
    assert read(shared, topic, fetch=fetch, envelope="none")["value"] == CONTENTS


@pytest.mark.parametrize("column", ["key", "headers", "value"])
def test_a_repeated_batch_with_another_key_or_header_is_refused(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str, column: str
) -> None:
    Task(0).begin(monkeypatch)
    schema = StructType([each for each in full(headers=True) if each.name in ROWS])

    def run(rows: dict[str, list[Any]]) -> None:
        given = options(shared, topic=topic, txnAppId="envelopes", txnVersion=3)
        writer = DafkaBatchWriter(schema, given)
        writer.begin()
        writer.commit([writer.write(iter([batch(rows)]))])

    run(ROWS)
    run({name: rows[::-1] for name, rows in ROWS.items()})
    with pytest.raises(ApplicationError, match="it has 4 others now"):
        run({**ROWS, column: [*ROWS[column][:3], ROWS[column][0]]})
    assert seen(shared, topic) == len(ROWS["key"])


def test_a_c_record_that_begins_like_an_envelope(shared: EmbeddedCluster, topic: str) -> None:
    """C producers publish values without envelopes."""
    begun = [b"\xc1DFK", b"\xc1DFK\x01\x03and more", CONTENTS[0] + b"!"]
    with Producer(topic, tower=shared.tower, wire="rfc46", envelope="none") as producer:
        producer.publish_many(begun)
        producer.flush(PATIENCE_S)
    assert read(shared, topic)["value"] == begun
    with Consumer(tower=shared.tower) as consumer:
        consumer.subscribe(topic)
        records = [consumer.poll(PATIENCE_S) for _ in begun]
    assert [record and record.value for record in records] == begun
