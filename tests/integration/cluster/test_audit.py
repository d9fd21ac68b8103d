"""A sink with option ``audit`` notes each micro-batch once, however often it is run."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.audit.audit_record import AuditRecord, chained, partition_of
from dafka_core.errors import ConfigError
from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from dafka_spark.sink.writer import (
    BATCH_ID,
    QUERY_ID,
    DafkaBatchWriter,
    DafkaStreamWriter,
    TaskCommit,
)
from tests.integration.cluster.transactions import Held, held, numbers, options
from tests.unit.dafka_spark.tasks import Task
from tests.unit.queries.checkpoints import checkpoint

SCHEMA = StructType([StructField(name, StringType()) for name in ("value", "topic")])


class Query:
    """What Spark does with the writers of an audited query."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cluster: EmbeddedCluster,
        name: str,
        checkpoint: str = "",
        **given: object,
    ) -> None:
        self._monkeypatch, self._cluster, self.name = monkeypatch, cluster, name
        self._checkpoint = checkpoint
        self._options = options(cluster, audit="true", **given)

    def writer(self) -> DafkaStreamWriter:
        return DafkaStreamWriter(SCHEMA, self._options, self._checkpoint)

    def task(self, batch: int, number: int, rows: pa.Array, *topics: str) -> TaskCommit:
        Task(number, {QUERY_ID: self.name, BATCH_ID: str(batch)}).begin(self._monkeypatch)
        names = pa.array([topics[row % len(topics)] for row in range(len(rows))], pa.string())
        columns = pa.record_batch({"value": rows, "topic": names})
        writer: DafkaStreamWriter = pickle.loads(pickle.dumps(self.writer()))
        told: TaskCommit = pickle.loads(pickle.dumps(writer.write(iter([columns]))))
        return told

    def run(self, batch: int, start: int, stop: int, *topics: str) -> None:
        """One with two tasks, of which the second one has no rows."""
        tasks = [
            self.task(batch, 0, numbers(start, stop), *topics),
            self.task(batch, 1, numbers(0, 0), *topics),
        ]
        self.writer().commit([None, *reversed(tasks)], batch)

    def noted(self, store: int = 0) -> Held:
        tp = partition_of(self.name)
        return held(self._cluster, tp.topic, store, tp.partition)

    def records(self) -> list[AuditRecord]:
        return [AuditRecord.parse(each) for each in self.noted().values]


def digest(start: int, stop: int, step: int = 1) -> str:
    return str(RowDigest().add(Values.of([b"%d" % row for row in range(start, stop, step)])))


def test_each_batch_is_noted(
    monkeypatch: pytest.MonkeyPatch,
    shared: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
) -> None:
    own = Checkpoint.read(str(checkpoint(tmp_path / "c")))
    query = Query(monkeypatch, shared, topic, f"file:{tmp_path}/c")
    topics = [topic, topic + "-2"]
    query.run(0, 0, 10, *topics)
    query.run(1, 10, 20, *topics)
    first, second = query.records()
    assert [(each.batch, each.rows, each.query) for each in (first, second)] == [
        (0, 10, topic),
        (1, 10, topic),
    ]
    assert [(each.topic, each.start, each.end) for each in second.ranges] == [
        (topics[0], 5, 10),
        (topics[1], 5, 10),
    ]
    assert [each.digest for each in second.ranges] == [digest(10, 20, 2), digest(11, 20, 2)]
    assert [each.source for each in (first, second)] == [own.source_digest(n) for n in (0, 1)]
    contents = query.noted().values
    assert (first.previous, second.previous) == ("", chained(contents[0]))


def test_a_batch_that_is_run_again_is_noted_once(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    query = Query(monkeypatch, shared, topic)
    query.run(0, 0, 10, topic)
    before = query.noted()
    checkpoint(tmp_path / "c")  # now the sink is told where it is
    for where in ("", str(tmp_path / "c"), "hdfs://host/c"):
        Query(monkeypatch, shared, topic, where).run(0, 0, 10, topic)
    assert query.noted() == before
    cut = [query.task(0, number, numbers(2 * number, 2 * number + 2), topic) for number in range(5)]
    query.writer().commit(cut, 0)  # the same rows by other tasks
    assert query.noted() == before
    query.run(1, 10, 11, topic)
    assert [each.batch for each in query.records()] == [0, 1]
    with pytest.raises(OldCheckpointError):
        query.run(0, 0, 10, topic)


def test_other_source_offsets_under_the_same_number_are_refused(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """The rows may be the same by chance, or the query's filter may leave none."""
    checkpoint(tmp_path / "one")
    checkpoint(tmp_path / "two", first=0, ends=["{}"])
    (tmp_path / "two" / "offsets" / "0").write_bytes(
        (tmp_path / "one" / "offsets" / "1").read_bytes()
    )
    Query(monkeypatch, shared, topic, str(tmp_path / "one")).run(0, 0, 0, topic)
    with pytest.raises(TransactionChangedError):
        Query(monkeypatch, shared, topic, str(tmp_path / "two")).run(0, 0, 0, topic)


def test_another_store_has_the_record_when_the_first_is_lost(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    query = Query(monkeypatch, own, topic)
    query.run(0, 0, 5, topic)
    assert query.noted(0).values == query.noted(1).values


def test_it_is_for_streaming_queries(shared: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(ConfigError, match="'audit' = 'true': is for streaming queries"):
        DafkaBatchWriter(SCHEMA, options(shared, topic=topic, audit="true"))
