"""Topics of any bytes, written by a sink and read by queries from each source."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core import EmbeddedCluster, Reader
from dafka_core.model.names import escape
from dafka_core.testing import PATIENCE_S
from dafka_spark.errors import ColumnError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.application import partition_address
from dafka_spark.sink.rows import write_rows
from dafka_spark.sink.staging import WrittenRange
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.transactions import commit, factory, options

FORMS = ("{}-bad\udcff", "{}-new\nline", "{}-\\xff", "{}-plain", "{}-" + "\udcfe" * 200)


def names(topic: str) -> list[str]:
    return [form.format(topic) for form in FORMS]


def write(cluster: EmbeddedCluster, topic: str, **given: object) -> tuple[WrittenRange, ...]:
    """Write a task's rows, one to each topic, with the escaped topics in a column."""
    shown = [escape(name) for name in names(topic)]
    rows = pa.record_batch({"value": pa.array(shown).cast(pa.binary()), "topic": pa.array(shown)})
    chosen = options(cluster, **given)
    with factory(chosen) as task:
        written = write_rows(
            iter([rows]), chosen, lambda name: partition_address("query", name, 0), task.open
        )
        commit(chosen, task.picked, *written)
        return written


def read(cluster: EmbeddedCluster, **given: str) -> list[tuple[str, str]]:
    """Return topic and value of all rows of a batch query."""
    reader = DafkaBatchReader(full(), SourceOptions.of({"tower": cluster.tower, **given}))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    rows = pa.Table.from_batches(batches).to_pylist()
    return sorted((row["topic"], row["value"].decode()) for row in rows)


def test_what_is_written_is_read_each_way(shared: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(ColumnError, match="option allowControlCharacters"):
        write(shared, topic)
    done = write(shared, topic, allowControlCharacters=True)
    assert {each.tp.topic for each in done} == set(names(topic))
    with Reader(tower=shared.tower) as reader:
        infos = reader.partitions(names(topic), timeout_s=PATIENCE_S)
    assert {info.topic for info in infos} == set(names(topic))
    expected = sorted((escape(name), escape(name)) for name in names(topic))
    for fetch in ("local", "flight", "mesh"):
        assert read(shared, subscribePattern=f"{topic}-.*", fetch=fetch) == expected
    for pair in expected:
        assert read(shared, subscribe=pair[0]) == [pair]


def test_a_stream_continues_from_its_checkpoint(shared: EmbeddedCluster, topic: str) -> None:
    given = {"tower": shared.tower, "startingOffsets": "earliest"}
    chosen = SourceOptions.of({**given, "subscribePattern": f"{topic}-.*"})
    position = None
    for _ in range(2):
        write(shared, topic, allowControlCharacters=True)
        stream = DafkaMicroBatchStream(full(), chosen)
        start = position or stream.initialOffset()
        position = json.loads(json.dumps(stream.latestOffset(start, ReadAllAvailable())))
        assert "packed" in position
        tasks = stream.partitions(start, position)
        batches = [batch for task in tasks for batch in stream.read(task)]
        found = sorted(name for batch in batches for name in batch["topic"].to_pylist())
        assert found == sorted(map(escape, names(topic)))
