"""Verification proves the batches of a query, or names the first one that is wrong."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dafka_core.audit import (
    GONE,
    PROVED,
    REPARTITIONED,
    SAME,
    TRIMMED,
    UNKNOWN,
    WRONG,
    AuditRecord,
    VerifiedBatch,
    chained,
    partition_of,
    passed_through,
    verified,
)
from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.flight.requests import TrimRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import RowDigest, Values
from dafka_core.queries.checkpoint import Checkpoint, sync_checkpoint
from dafka_core.security.permissions import PREFIX_DIGITS
from dafka_core.testing import PATIENCE_S
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from tests.integration.cluster.audited_query import IN, OUT, AuditedQuery
from tests.integration.cluster.sinks import Held, Sink, numbers, run
from tests.integration.cluster.stores import Patch, Serve, Served
from tests.synced_disk import SyncedDisk
from tests.unit.queries.test_checkpoint import ENDS, QUERY, checkpoint, commit, offsets, write

P, Q = "topic 'out', partition P", "topic 'out', partition Q"


@pytest.fixture
def store(serve: Serve) -> Served:
    return serve("store")


@pytest.fixture
def query(tmp_path: Path, store: Served) -> AuditedQuery:
    return AuditedQuery(tmp_path / "c", [store])


def verify(
    query: AuditedQuery, *stores: Served, source: Served | None = None, **more: Any
) -> list[VerifiedBatch]:
    recompute = None
    if source:
        recompute = passed_through([source.client()], query.checkpoint, timeout_s=PATIENCE_S)
    clients = [each.client() for each in stores]
    return [*verified(clients, query.checkpoint, recompute, timeout_s=PATIENCE_S, **more)]


def states(batches: Sequence[VerifiedBatch]) -> list[str]:
    return [each.state for each in batches]


def failure(batches: Sequence[VerifiedBatch]) -> tuple[int, str]:
    """Return the number of the last batch, the only wrong one, and why."""
    *good, last = batches
    assert (states(good), last.state) == ([PROVED] * len(good), WRONG)
    return last.batch, last.why


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_a_batch_is_proved(query: AuditedQuery, store: Served, is_recomputed: bool) -> None:
    query.audit()
    found = verify(query, store, source=store if is_recomputed else None)
    assert found == [VerifiedBatch(n, PROVED, 4, SAME, is_recomputed, "") for n in range(3)]
    assert [each.batch for each in verify(query, store, from_batch=2)] == [2]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"digest": "2:00"}, f"{P}, offsets 2 to 4: recorded 2 rows, but stores have 2 others"),
        ({"digest": "3:00"}, f"{P}, offsets 2 to 4: recorded 3 rows, but stores have 2"),
        ({"digest": "x"}, f"{P}: the recorded digest is invalid"),
        ({"end": 9}, f"{P}: no store has offsets 2 to 9"),
        ({"start": 3}, f"{P} begins at 3, not at 2"),
        ({"rows": 5}, "it has 4 rows, but 5 were written"),
        ({"query": "other"}, "the record is of query other"),
        ({"source": "00"}, "it was written from other source offsets than those in the "),
        ({"previous": "00"}, "its record does not follow the previous one: one is missing"),
        ({"batch": 2}, "its record is at the position of that of batch 1"),
        ({}, "the record written for it is invalid"),
    ],
)
def test_the_first_wrong_batch_is_named(
    query: AuditedQuery, store: Served, fields: dict[str, Any], why: str
) -> None:
    before, record, after = query.records
    first, *others = record.ranges
    in_range = {name: fields[name] for name in fields.keys() & {*first._fields}}
    in_record = {name: fields[name] for name in fields.keys() - in_range.keys()}
    ranges = (first._replace(**in_range), *others)
    wrong = replace(record, **{"ranges": ranges} | in_record) if fields else b"{}"
    query.audit([before, wrong, after])
    batch, found = failure(verify(query, store))
    assert (batch, found[: len(why)]) == (fields.get("batch", 1), why)


def test_each_batch_needs_a_record_and_each_row_a_batch(query: AuditedQuery, store: Served) -> None:
    query.audit(query.records[:2])
    why = "it is committed, but the sink has no record of it"
    assert failure(verify(query, store)) == (2, why)
    (query.checkpoint.path / "commits" / "2").unlink()
    query.reread()  # some of its rows may be written
    assert states(verify(query, store)) == [PROVED] * 2
    query.audit(query.records[2:])
    commit(query.checkpoint.path, 2)
    query.append(OUT[1], [b"more"])
    query.reread()
    assert failure(verify(query, store)) == (3, f"{Q}: rows from offset 6 on belong to no batch")
    write(query.checkpoint.path / "offsets" / "3", offsets(ENDS[0]))  # of a batch that still runs
    assert states(verify(query, store)) == [PROVED] * 3


def test_a_batch_that_is_committed_meanwhile_is_not_wrong(
    query: AuditedQuery, store: Served
) -> None:
    """Its rows are there when the stores are asked, its record is written afterwards."""
    query.audit(query.records[:2])
    (query.checkpoint.path / "commits" / "2").unlink()
    query.reread()
    running = verified([store.client()], query.checkpoint, timeout_s=PATIENCE_S)
    found = [next(running), next(running)]
    query.audit(query.records[2:])
    commit(query.checkpoint.path, 2)
    assert states([*found, *running]) == [PROVED] * 2


# -- Spark's offline repartitioning ----------------------------------------------------------------


@pytest.fixture
def repartitioned(query: AuditedQuery) -> AuditedQuery:
    """The query with batch 2 as Spark's offline repartitioning writes it, and no record of it."""
    planned = query.checkpoint.path / "offsets"
    write(planned / "3", (planned / "2").read_text())
    write(planned / "2", offsets(query.ends[1], 1, partitions=3))
    commit(query.checkpoint.path, 3)
    query.records[2] = replace(query.records[2], batch=3)
    return query


def forget(query: AuditedQuery, end: int) -> None:
    """Delete the offsets of the batches before ``end``, as Spark does."""
    for number in range(end):
        (query.checkpoint.path / "offsets" / str(number)).unlink()


def end_with_repartitioning(query: AuditedQuery) -> None:
    for name in ("offsets", "commits"):
        (query.checkpoint.path / name / "3").unlink()
    query.records.pop()


def keep_offsets_of_a_later_batch(query: AuditedQuery) -> None:
    write(query.checkpoint.path / "offsets" / "4", offsets(ENDS[2], 4))
    query.records[2] = replace(query.records[2], batch=4)
    forget(query, 2)


def change_other_offsets(query: AuditedQuery) -> None:
    write(query.checkpoint.path / "offsets" / "2", offsets(ENDS[0], 2, partitions=3))


DELETED = "batches 2 to 2 have no record, and Spark has deleted their offsets"


@pytest.mark.parametrize(
    ("change", "expected", "why"),
    [
        (lambda _: None, [REPARTITIONED, PROVED], ""),
        (lambda query: forget(query, 2), [UNKNOWN, PROVED], DELETED),
        (lambda query: forget(query, 3), [UNKNOWN, PROVED], DELETED),
        (
            keep_offsets_of_a_later_batch,
            [UNKNOWN, WRONG],
            "its record is at the position of that of batch 3",
        ),
        (
            end_with_repartitioning,
            [REPARTITIONED, WRONG],
            f"{P}: rows from offset 4 on belong to no ",
        ),
        (change_other_offsets, [WRONG], "its record is at the position of that of batch 2"),
    ],
)
def test_a_batch_that_repartitions_state_has_no_record(
    repartitioned: AuditedQuery,
    store: Served,
    change: Callable[[AuditedQuery], None],
    expected: list[str],
    why: str,
) -> None:
    change(repartitioned)
    repartitioned.reread()
    repartitioned.audit()
    found = verify(repartitioned, store)
    assert states(found) == [PROVED, PROVED, *expected]
    last = found[-1] if WRONG in expected else found[2]
    assert last.why.startswith(why)


# -- stores and sources ----------------------------------------------------------------------------


def test_rows_that_are_trimmed_or_without_records(query: AuditedQuery, store: Served) -> None:
    with pytest.raises(DafkaError, match=f"query {QUERY} cannot be verified: no store has"):
        verify(query, store)
    query.audit()
    store.log.trim(OUT[0], 1)
    found = verify(query, store)
    assert states(found) == [TRIMMED, PROVED, PROVED]
    assert found[0].why == f"{P}: offsets 0 to 2 are trimmed in part"


def test_rows_that_are_trimmed_meanwhile_are_not_wrong(query: AuditedQuery, store: Served) -> None:
    query.audit()
    running = verified([store.client()], query.checkpoint, timeout_s=PATIENCE_S)
    found = [next(running)]
    store.log.trim(OUT[0], 3)
    assert states([*found, *running]) == [PROVED, TRIMMED, PROVED]


def test_one_store_with_all_audit_records_is_enough(
    tmp_path: Path, store: Served, serve: Serve
) -> None:
    other = serve("other")
    query = AuditedQuery(tmp_path / "c", [store, other])
    query.audit()
    store.log.trim(partition_of(QUERY), 1)
    assert states(verify(query, store, other)) == [PROVED] * 3
    assert states(verify(query, other, store)) == [PROVED] * 3
    with pytest.raises(DafkaError, match="its first records are trimmed"):
        verify(query, store)


def test_all_stores_have_the_same_rows(query: AuditedQuery, store: Served, serve: Serve) -> None:
    query.audit()
    behind, other, source = serve("behind"), serve("other"), serve("source")
    behind.append(OUT[0], [b"0", b"2"])
    assert states(verify(query, behind, store)) == [PROVED] * 3
    other.append(OUT[0], [b"0", b"2", b"4", b"x"])
    why = f"{P}: stores have different rows at offsets 2 to 4"
    assert failure(verify(query, store, behind, other)) == (1, why)
    behind.stop()
    with pytest.raises(StoreUnreachableError):
        verify(query, store, behind)
    # Also those that are recomputed from their source.
    source.append(IN, [b"%d" % row for row in (*range(4), 4, 5, 6, 8, *range(8, 12))])
    why = "recomputed from its source are 4 rows, but stores have 4 others"
    assert failure(verify(query, store, source=source)) == (1, why)


@pytest.mark.parametrize(
    ("change", "sources"),
    [
        ("other offsets", [SAME, UNKNOWN]),
        ("deleted offsets", [GONE, GONE, SAME]),
        ("no source in records", [UNKNOWN] * 3),
    ],
)
def test_source_offsets_are_compared_as_far_as_known(
    query: AuditedQuery, store: Served, change: str, sources: list[str]
) -> None:
    planned = query.checkpoint.path / "offsets"
    if change == "other offsets":
        write(planned / "1", offsets(ENDS[0]))
    elif change == "deleted offsets":
        (planned / "0").unlink()
    else:
        query.records = [replace(each, source="") for each in query.records]
    query.reread()
    query.audit()
    found = verify(query, store, source=store)
    assert [each.source for each in found] == sources
    assert [each.recomputed for each in found] == [
        each.source != GONE and each.state == PROVED for each in found
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_offsets_that_spark_deletes_meanwhile_are_gone(
    query: AuditedQuery, store: Served, is_late: bool
) -> None:
    query.audit()
    own = passed_through([store.client()], query.checkpoint, timeout_s=PATIENCE_S)

    def recompute(batch: int) -> RowDigest:
        if is_late and batch == 1:
            forget(query, 2)
        return own(batch)

    running = verified([store.client()], query.checkpoint, recompute, timeout_s=PATIENCE_S)
    found = [next(running)]
    if not is_late:
        forget(query, 2)
    found += running
    assert [(each.state, each.source) for each in found] == [
        (PROVED, SAME),
        (PROVED, GONE),
        (PROVED, GONE),
    ]


def test_the_records_of_one_key_are_verified(query: AuditedQuery, store: Served) -> None:
    query.audit()
    own = partition_of(QUERY)
    forged = TopicPartition(own.topic, "F" * PREFIX_DIGITS + own.partition[PREFIX_DIGITS:])
    query.append(forged, [b"forged"])
    with pytest.raises(DafkaError, match=f"{own.partition} and {forged.partition}; choose with"):
        verify(query, store)
    with pytest.raises(DafkaError, match=f"is in partition F, but in {own.partition} and "):
        verify(query, store, partition="F")
    assert verify(query, store, partition=own.partition)[-1].state == PROVED
    assert verify(query, store, partition=forged.partition)[-1].state == WRONG


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
def audited(sink: Sink) -> Query:
    return Query(sink)


def digest(start: int, stop: int, step: int) -> str:
    return str(RowDigest().add(Values.of([b"%d" % row for row in range(start, stop, step)])))


def test_each_batch_is_recorded(audited: Query, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c")
    topics = [audited.topic, audited.topic + "-2"]
    for batch in (0, 1):
        audited.run(batch, 10 * batch, 10 * batch + 10, *topics, checkpoint=f"file:{path}")
    records = audited.records()
    own = Checkpoint.read(str(path))
    assert [(each.query, each.batch, each.rows, each.source) for each in records] == [
        (audited.topic, batch, 10, own.source_digest(batch)) for batch in (0, 1)
    ]
    assert [(each.topic, each.start, each.end, each.digest) for each in records[1].ranges] == [
        (topics[0], 5, 10, digest(10, 20, 2)),
        (topics[1], 5, 10, digest(11, 20, 2)),
    ]
    assert [each.previous for each in records] == ["", chained(audited.recorded().values[0])]


def test_a_batch_that_is_run_again_is_recorded_once(audited: Query, tmp_path: Path) -> None:
    audited.run(0, 0, 10)
    before = audited.recorded()
    path = str(checkpoint(tmp_path / "c"))  # only later runs know it
    for each in ("", path, "hdfs://host/c"):
        audited.run(0, 0, 10, checkpoint=each)
    audited.run(0, 0, 10, tasks=5)
    assert audited.recorded() == before
    audited.run(1, 10, 11)
    assert [each.batch for each in audited.records()] == [0, 1]
    with pytest.raises(OldCheckpointError):
        audited.run(0, 0, 10)


def test_a_recorded_batch_is_repeated_after_some_of_its_rows_are_trimmed(
    sink: Sink, audited: Query
) -> None:
    audited.run(0, 0, 20, tasks=2)
    before = audited.recorded()
    first, _ = audited.records()[0].ranges
    with sink.session() as session:
        (client,) = session.clients()
        client.ask(PATIENCE_S, TrimRequest(((*first.tp, 5),)))
    for tasks in (2, 5):
        audited.run(0, 0, 20, tasks=tasks)
        assert audited.recorded() == before


def test_other_source_offsets_under_the_same_number_are_refused(
    audited: Query, tmp_path: Path
) -> None:
    """The rows may be the same by chance, or the query's filter may leave none."""
    one, two = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two", first=0, ends=["{}"])
    (two / "offsets" / "0").write_bytes((one / "offsets" / "1").read_bytes())
    audited.run(0, 0, 0, checkpoint=str(one))
    with pytest.raises(TransactionChangedError):
        audited.run(0, 0, 0, checkpoint=str(two))


def test_all_stores_have_the_record(pair: Sink) -> None:
    audited = Query(pair)
    audited.run(0, 0, 5)
    assert audited.recorded(0).values == audited.recorded(1).values
    assert len(audited.records()) == 1


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_the_checkpoint_is_on_disk_before_the_sink_commits(
    audited: Query, patch: Patch, tmp_path: Path, scheme: str
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
    audited.run(0, 0, 10, checkpoint=f"{scheme}{directory}")
    assert lost == []
    write(directory / "state" / "0" / "0" / "1.delta", "behind batch 0")
    write(directory / "commits" / "0", "v1\n{}")
    write(directory / "offsets" / "1", offsets(ENDS[1], 1))
    later_s = time.time() + 60  # then the clock was set back
    os.utime(directory / "offsets" / "0", (later_s, later_s))
    audited.run(1, 10, 20, checkpoint=f"{scheme}{directory}")
    assert lost == []


def test_a_checkpoint_elsewhere_is_left_alone(tmp_path: Path) -> None:
    for location in ("", "hdfs://host/c", "s3a://bucket/c", str(tmp_path / "missing")):
        sync_checkpoint(location, 0)
    assert [*tmp_path.iterdir()] == []
