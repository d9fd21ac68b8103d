"""With option ``audit`` the sink records each micro-batch once, however often it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.audit.audit_record import AuditRecord, chained, partition_of
from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from tests.integration.cluster.batch_job import MicroBatch, run
from tests.integration.cluster.transactions import Held, held, numbers
from tests.unit.queries.checkpoints import checkpoint


class Query:
    """An audited query, which is named as its topic."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedCluster, topic: str
    ) -> None:
        self._monkeypatch, self._cluster, self.topic = monkeypatch, cluster, topic

    def run(
        self, batch: int, start: int, stop: int, *topics: str, checkpoint: str = "", tasks: int = 1
    ) -> None:
        write = MicroBatch(
            self._monkeypatch, self._cluster, batch, self.topic, checkpoint, audit="true"
        )
        rows = [numbers(start + task, stop)[::tasks] for task in range(tasks)]
        run(write, [*rows, numbers(0, 0)], *topics or [self.topic])

    def recorded(self, store: int = 0) -> Held:
        tp = partition_of(self.topic)
        return held(self._cluster, tp.topic, store, tp.partition)

    def records(self) -> list[AuditRecord]:
        return [AuditRecord.parse(each) for each in self.recorded().values]


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str) -> Query:
    return Query(monkeypatch, shared, topic)


def digest(start: int, stop: int, step: int) -> str:
    return str(RowDigest().add(Values.of([b"%d" % row for row in range(start, stop, step)])))


def test_each_batch_is_recorded(query: Query, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c")
    topics = [query.topic, query.topic + "-2"]
    for batch in (0, 1):
        query.run(batch, 10 * batch, 10 * batch + 10, *topics, checkpoint=f"file:{path}")
    records = query.records()
    own = Checkpoint.read(str(path))
    assert [(each.query, each.batch, each.rows, each.source) for each in records] == [
        (query.topic, batch, 10, own.source_digest(batch)) for batch in (0, 1)
    ]
    assert [(each.topic, each.start, each.end, each.digest) for each in records[1].ranges] == [
        (topics[0], 5, 10, digest(10, 20, 2)),
        (topics[1], 5, 10, digest(11, 20, 2)),
    ]
    contents = query.recorded().values
    assert [each.previous for each in records] == ["", chained(contents[0])]


def test_a_batch_that_is_run_again_is_recorded_once(query: Query, tmp_path: Path) -> None:
    query.run(0, 0, 10)
    before = query.recorded()
    path = str(checkpoint(tmp_path / "c"))  # only later runs know it
    for each in ("", path, "hdfs://host/c"):
        query.run(0, 0, 10, checkpoint=each)
    query.run(0, 0, 10, tasks=5)
    assert query.recorded() == before
    query.run(1, 10, 11)
    assert [each.batch for each in query.records()] == [0, 1]
    with pytest.raises(OldCheckpointError):
        query.run(0, 0, 10)


def test_other_source_offsets_under_the_same_number_are_refused(
    query: Query, tmp_path: Path
) -> None:
    """The rows may be the same by chance, or the query's filter may leave none."""
    one, two = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two", first=0, ends=["{}"])
    (two / "offsets" / "0").write_bytes((one / "offsets" / "1").read_bytes())
    query.run(0, 0, 0, checkpoint=str(one))
    with pytest.raises(TransactionChangedError):
        query.run(0, 0, 0, checkpoint=str(two))


def test_all_stores_have_the_record(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    query = Query(monkeypatch, own, topic)
    query.run(0, 0, 5)
    assert query.recorded(0).values == query.recorded(1).values
    assert len(query.records()) == 1
