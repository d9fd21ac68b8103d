"""Rows with keys, headers, null values and odd topics, from the sink to a store and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dafka_core import Consumer, EmbeddedCluster, Producer, Reader
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.names import escape
from dafka_core.testing import PATIENCE_S
from dafka_spark.errors import ApplicationError, ColumnError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.application import partition_address
from dafka_spark.sink.rows import write_rows
from dafka_spark.sink.staging import WrittenRange
from dafka_spark.sink.writer import DafkaBatchWriter
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.sinks import Sink
from tests.integration.cluster.stores import Batch
from tests.unit.dafka_spark.streams import ALL, json_round
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


def write(sink: Sink, rows: pa.RecordBatch, **given: object) -> tuple[WrittenRange, ...]:
    """Write a task's rows."""
    with sink.factory(**given) as task:
        written = write_rows(
            iter([rows]),
            sink.options(**given),
            lambda name: partition_address("query", name, 0),
            task.open,
        )
        sink.commit(*written, store=task.picked, **given)
        return written


def read(sink: Sink, **given: str) -> dict[str, list[Any]]:
    """Read rows as a batch query does."""
    query = Batch(tower=sink.cluster.tower, includeHeaders="true", **given)
    found = pa.Table.from_batches(query.batches()).to_pydict()
    return {**found, "headers": [row or [] for row in found["headers"]]}


@pytest.mark.parametrize("fetch", ["flight", "local", "mesh"])
def test_every_source_returns_the_rows_that_were_written(sink: Sink, fetch: str) -> None:
    (written,) = write(sink, batch(ROWS))
    assert sink.held(0, written.tp.partition).values == CONTENTS
    found = read(sink, subscribe=sink.topic, fetch=fetch)
    assert {name: found[name] for name in ROWS} == ROWS
    query = Batch(tower=sink.cluster.tower, subscribe=sink.topic, fetch=fetch, envelope="none")
    assert [row["value"] for row in query.rows()] == CONTENTS


@pytest.mark.parametrize("column", ["key", "headers", "value"])
def test_a_repeated_batch_with_another_key_or_header_is_refused(sink: Sink, column: str) -> None:
    Task(0).begin(sink.patch)
    schema = StructType([each for each in full(headers=True) if each.name in ROWS])

    def run(rows: dict[str, list[Any]]) -> None:
        writer = DafkaBatchWriter(schema, sink.options(txnAppId="envelopes", txnVersion=3))
        writer.begin()
        writer.commit([writer.write(iter([batch(rows)]))])

    run(ROWS)
    run({name: rows[::-1] for name, rows in ROWS.items()})
    with pytest.raises(ApplicationError, match="it has 4 others now"):
        run({**ROWS, column: [*ROWS[column][:3], ROWS[column][0]]})
    assert sink.seen() == len(ROWS["key"])


def test_a_c_record_that_begins_like_an_envelope(
    shared: EmbeddedCluster, sink: Sink, topic: str
) -> None:
    """C producers publish values without envelopes."""
    begun = [b"\xc1DFK", b"\xc1DFK\x01\x03and more", CONTENTS[0] + b"!"]
    with Producer(topic, tower=shared.tower, wire="rfc46", envelope="none") as producer:
        producer.publish_many(begun)
        producer.flush(PATIENCE_S)
    assert read(sink, subscribe=topic)["value"] == begun
    with Consumer(tower=shared.tower) as consumer:
        consumer.subscribe(topic)
        records = [consumer.poll(PATIENCE_S) for _ in begun]
    assert [record and record.value for record in records] == begun


# -- topics of any bytes ---------------------------------------------------------------------------


@pytest.fixture
def names(topic: str) -> list[str]:
    forms = "bad\udcff", "new\nline", "\\xff", "plain", "\udcfe" * 200
    return [f"{topic}-{form}" for form in forms]


def write_each(sink: Sink, names: list[str], **given: object) -> tuple[WrittenRange, ...]:
    """Write a row to each topic, with the escaped topics in a column."""
    shown = [escape(name) for name in names]
    rows = pa.record_batch({"value": pa.array(shown).cast(pa.binary()), "topic": pa.array(shown)})
    return write(sink, rows, topic="", **given)


def test_what_is_written_is_read_each_way(sink: Sink, names: list[str]) -> None:
    with pytest.raises(ColumnError, match="option allowControlCharacters"):
        write_each(sink, names)
    done = write_each(sink, names, allowControlCharacters=True)
    assert {each.tp.topic for each in done} == set(names)
    with Reader(tower=sink.cluster.tower) as reader:
        infos = reader.partitions(names, timeout_s=PATIENCE_S)
    assert {info.topic for info in infos} == set(names)
    expected = sorted(map(escape, names))

    def check(expected: list[str], **given: str) -> None:
        found = read(sink, **given)
        assert sorted(found["topic"]) == expected
        assert [value.decode() for value in found["value"]] == found["topic"]

    for fetch in ("local", "flight", "mesh"):
        check(expected, subscribePattern=f"{sink.topic}-.*", fetch=fetch)
    for name in expected:
        check([name], subscribe=name)


def test_a_stream_continues_from_its_checkpoint(sink: Sink, names: list[str]) -> None:
    given = {"tower": sink.cluster.tower, "startingOffsets": "earliest"}
    chosen = SourceOptions.of({**given, "subscribePattern": f"{sink.topic}-.*"})
    position = None
    for _ in range(2):
        write_each(sink, names, allowControlCharacters=True)
        stream = DafkaMicroBatchStream(full(), chosen)
        start = position or stream.initialOffset()
        position = json_round(stream.latestOffset(start, ALL))
        assert "packed" in position
        tasks = stream.partitions(start, position)
        batches = [batch for task in tasks for batch in stream.read(task)]
        found = sorted(name for batch in batches for name in batch["topic"].to_pylist())
        assert found == sorted(map(escape, names))
