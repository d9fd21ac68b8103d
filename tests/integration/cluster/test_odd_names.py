"""Topics of any octets: what a sink writes, the readers of queries read, each way there is."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core import EmbeddedCluster, Reader
from dafka_core.model.names import escape
from dafka_spark.errors import ColumnError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.application import partition_address
from dafka_spark.sink.rows import write_rows
from dafka_spark.sink.staging import WrittenRange
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.transactions import PATIENCE_S, commit, factory, options

FORMS = ("{}-bad\udcff", "{}-new\nline", "{}-\\xff", "{}-plain", "{}-" + "\udcfe" * 200)


def names(topic: str) -> list[str]:
    return [form.format(topic) for form in FORMS]


def write(cluster: EmbeddedCluster, topic: str, **given: object) -> tuple[WrittenRange, ...]:
    """A task's rows, one for each topic, with the topics in a column as they are shown."""
    shown = [escape(name) for name in names(topic)]
    rows = pa.record_batch({"value": pa.array(shown).cast(pa.binary()), "topic": pa.array(shown)})
    chosen = options(cluster, **given)
    with factory(chosen) as task:

        def address_of(name: str) -> str:
            return partition_address("query", name, 0)

        written = write_rows(iter([rows]), chosen, address_of, task.open)
        commit(chosen, task.picked, *written)
        return written


def rows_of(cluster: EmbeddedCluster, **given: str) -> list[tuple[str, str]]:
    """Topic and value of all that a batch query reads."""
    reader = DafkaBatchReader(full(), SourceOptions.of({"tower": cluster.tower, **given}))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    table = pa.Table.from_batches(batches).select(["topic", "value"]).to_pylist()
    return sorted((row["topic"], row["value"].decode()) for row in table)


def test_what_is_written_is_read_each_way(shared: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(ColumnError, match="option allowControlCharacters"):
        write(shared, topic)
    done = write(shared, topic, allowControlCharacters=True)
    assert {each.tp.topic for each in done} == set(names(topic))
    with Reader(tower=shared.tower) as reader:
        held = {info.topic for info in reader.partitions(names(topic), timeout_s=PATIENCE_S)}
    assert held == set(names(topic))
    expected = sorted((escape(name), escape(name)) for name in names(topic))
    for fetch in ("local", "flight", "mesh"):
        assert rows_of(shared, subscribePattern=f"{topic}-.*", fetch=fetch) == expected
    for pair in expected:
        assert rows_of(shared, subscribe=pair[0]) == [pair]


def test_a_stream_goes_on_from_its_checkpoint(shared: EmbeddedCluster, topic: str) -> None:
    write(shared, topic, allowControlCharacters=True)
    given = {"tower": shared.tower, "startingOffsets": "earliest"}
    chosen = SourceOptions.of({**given, "subscribePattern": f"{topic}-.*"})
    begin = end = None
    for count in (1, 2):
        stream = DafkaMicroBatchStream(full(), chosen)
        begin = end or stream.initialOffset()
        end = json.loads(json.dumps(stream.latestOffset(begin, ReadAllAvailable())))
        assert "packed" in end
        tasks = stream.partitions(begin, end)
        batches = [batch for task in tasks for batch in stream.read(task)]
        found = sorted(name for batch in batches for name in batch["topic"].to_pylist())
        assert found == sorted(map(escape, names(topic)))
        if count == 1:
            write(shared, topic, allowControlCharacters=True)
