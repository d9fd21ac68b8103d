"""Micro-batches that can be verified later: option ``audit``, and a checkpoint that lasts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dafka_core.audit.audit_record import AuditRecord, chained, partition_of
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values
from dafka_core.queries.checkpoint import Checkpoint, sync_checkpoint
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from tests.integration.cluster.sinks import Held, Sink, numbers, run
from tests.integration.cluster.stores import Patch
from tests.synced_disk import SyncedDisk
from tests.unit.queries.checkpoints import ENDS, checkpoint, offsets, write


class Query:
    """An audited query, which is named as its topic."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self.topic = sink, sink.topic

    def run(
        self, batch: int, start: int, stop: int, *topics: str, checkpoint: str = "", tasks: int = 1
    ) -> None:
        rows = [numbers(start + task, stop)[::tasks] for task in range(tasks)]
        run(
            self._sink.micro_batch(batch, checkpoint, audit="true"), [*rows, numbers(0, 0)], *topics
        )

    def recorded(self, store: int = 0) -> Held:
        tp = partition_of(self.topic)
        return self._sink.held(store, tp.partition, tp.topic)

    def records(self) -> list[AuditRecord]:
        return [AuditRecord.parse(each) for each in self.recorded().values]


@pytest.fixture
def query(sink: Sink) -> Query:
    return Query(sink)


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
    assert [each.previous for each in records] == ["", chained(query.recorded().values[0])]


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


def test_all_stores_have_the_record(pair: Sink) -> None:
    query = Query(pair)
    query.run(0, 0, 5)
    assert query.recorded(0).values == query.recorded(1).values
    assert len(query.records()) == 1


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_the_checkpoint_is_on_disk_before_the_sink_commits(
    query: Query, patch: Patch, tmp_path: Path, scheme: str
) -> None:
    """After a power cut at the driver it repeats the batch that the sink has committed."""
    directory = tmp_path / "new" / "c"
    disk = SyncedDisk(tmp_path, patch.setattr)
    lost: list[str] = []
    commit = StoreClient.commit

    def lost_now() -> list[str]:
        return [str(Path(each).relative_to(tmp_path)) for each in disk.lost()]

    def checked(client: StoreClient, staged: Sequence[Any], **named: Any) -> None:
        lost.extend(lost_now())
        commit(client, staged, **named)

    patch.setattr(StoreClient, "commit", checked)
    directory.parent.mkdir()
    checkpoint(directory, ENDS[:1], committed=0)
    assert "new/c/offsets/0" in lost_now()
    query.run(0, 0, 10, checkpoint=f"{scheme}{directory}")
    assert lost == []
    write(directory / "state" / "0" / "0" / "1.delta", "behind batch 0")
    write(directory / "commits" / "0", "v1\n{}")
    write(directory / "offsets" / "1", offsets(ENDS[1], 1))
    later_s = time.time() + 60  # then the clock was set back
    os.utime(directory / "offsets" / "0", (later_s, later_s))
    query.run(1, 10, 20, checkpoint=f"{scheme}{directory}")
    assert lost == []


def test_a_checkpoint_elsewhere_is_left_alone(tmp_path: Path) -> None:
    for location in ("", "hdfs://host/c", "s3a://bucket/c", str(tmp_path / "missing")):
        sync_checkpoint(location, 0)
    assert [*tmp_path.iterdir()] == []
