"""What a query has written is proved, or the first batch is named that is not as it was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dafka_core.audit.audit_record import AuditRecord
from dafka_core.audit.verification import (
    GONE,
    PROVED,
    SAME,
    TRIMMED,
    UNKNOWN,
    WRONG,
    VerifiedBatch,
    passed_through,
    verified,
)
from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.testing import PATIENCE_S
from tests.integration.cluster.audited_query import IN, OUT, AuditedQuery
from tests.integration.cluster.stores import Serve, Served
from tests.unit.queries.checkpoints import ENDS, QUERY, checkpoint, offsets, write


def found(
    query: AuditedQuery, *stores: Served, anew: bool = False, from_batch: int = 0
) -> list[VerifiedBatch]:
    clients = [each.client() for each in stores]
    recompute = passed_through(clients, query.checkpoint, timeout_s=PATIENCE_S) if anew else None
    batches = verified(
        clients, query.checkpoint, recompute, from_batch=from_batch, timeout_s=PATIENCE_S
    )
    return [*batches]


def states(batches: Sequence[VerifiedBatch]) -> list[tuple[int, str]]:
    return [(each.batch, each.state) for each in batches]


@pytest.fixture
def store(serve: Serve) -> Served:
    return serve("one")


@pytest.fixture
def query(tmp_path: Path, store: Served) -> AuditedQuery:
    return AuditedQuery(tmp_path / "c", [store])


@pytest.mark.parametrize("anew", [False, True])
def test_what_is_as_it_was_written_is_proved(
    query: AuditedQuery, store: Served, anew: bool
) -> None:
    query.note()
    assert found(query, store, anew=anew) == [
        VerifiedBatch(number, PROVED, 4, SAME, anew, "") for number in range(3)
    ]
    assert states(found(query, store, from_batch=2)) == [(2, PROVED)]


def damaged(given: AuditedQuery, number: int, what: dict[str, Any]) -> list[AuditRecord | bytes]:
    """The records, of which one has other ranges, or other fields."""
    records: list[AuditRecord | bytes] = [*given.records]
    record = given.records[number]
    first, *others = record.ranges
    fields = {name: value for name, value in what.items() if name in first._fields}
    ranges = (first._replace(**fields), *others)
    more = {name: value for name, value in what.items() if name not in fields}
    records[number] = replace(record, **{"ranges": ranges} | more)
    return records


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (
            {"digest": str(RowDigest().add(Values.of([b"a", b"b"])))},
            "topic 'out', partition P, offsets 2 to 4: noted are 2 rows, and stores have 2 others",
        ),
        ({"digest": "3:00"}, "noted are 3 rows, and stores have 2"),
        ({"digest": "x"}, "topic 'out', partition P: the digest that is noted is none"),
        ({"end": 9}, "topic 'out', partition P: no store has offsets 2 to 9"),
        ({"start": 3}, "topic 'out', partition P begins at 3, and not at 2"),
        ({"rows": 5}, "it has 4 rows, and 5 were written"),
        ({"query": "other"}, "the record is of query other"),
        ({"source": "00"}, "the checkpoint has other source offsets than those it was written"),
        ({"previous": "00"}, "does not follow the one before: one is missing, or changed"),
        ({"batch": 2}, "its record comes where that of batch 1 was to come"),
    ],
)
def test_the_first_batch_that_is_wrong_is_named(
    query: AuditedQuery, store: Served, what: dict[str, Any], why: str
) -> None:
    query.note(damaged(query, 1, what))
    *before, last = found(query, store)
    assert states(before) == [(0, PROVED)]
    assert (last.batch, last.state) == (what.get("batch", 1), WRONG)
    assert why in last.why


def test_a_record_that_is_missing_or_none_is_seen(query: AuditedQuery, store: Served) -> None:
    query.note([query.records[0], b"{}", *query.records[1:]])
    *_, last = found(query, store)
    assert (last.batch, last.why) == (1, "what is noted of it is no audit record")


def test_rows_that_are_of_no_batch_are_seen(query: AuditedQuery, store: Served) -> None:
    query.append(OUT[1], [b"more"])
    query.note()
    *before, last = found(query, store)
    assert states(before) == [(number, PROVED) for number in range(3)]
    assert last.why == "topic 'out', partition Q: rows from offset 6 on are of no batch"


def test_a_batch_that_is_done_and_not_noted_is_seen(query: AuditedQuery, store: Served) -> None:
    query.note(query.records[:2])
    *before, last = found(query, store)
    assert states(before) == [(0, PROVED), (1, PROVED)]
    assert (last.batch, last.why) == (2, "it is committed, and the sink has no record of it")


def test_a_batch_that_is_unfinished_may_be_there_in_part(
    query: AuditedQuery, store: Served
) -> None:
    (query.checkpoint.path / "commits" / "2").unlink()
    query.checkpoint = Checkpoint.read(str(query.checkpoint.path))
    query.note(query.records[:2])
    assert states(found(query, store)) == [(0, PROVED), (1, PROVED)]


def test_a_query_that_goes_on_meanwhile_is_not_wrong(query: AuditedQuery, store: Served) -> None:
    query.note()
    write(query.checkpoint.path / "offsets" / "3", offsets(ENDS[0]))
    query.append(OUT[0], [b"12"])
    assert states(found(query, store)) == [(number, PROVED) for number in range(3)]


def test_rows_that_stores_have_trimmed_are_said(query: AuditedQuery, store: Served) -> None:
    query.note()
    store.log.trim(OUT[0], 1)
    first, *others = found(query, store)
    assert (first.state, first.why) == (
        TRIMMED,
        "topic 'out', partition P: offsets 0 to 2 are trimmed in part",
    )
    assert states(others) == [(1, PROVED), (2, PROVED)]


def test_each_store_is_asked(tmp_path: Path, serve: Serve) -> None:
    good, behind, other = serve("good"), serve("behind"), serve("other")
    query = AuditedQuery(tmp_path / "c", [good])
    query.note()
    behind.append(OUT[0], [b"0", b"2"])
    assert states(found(query, behind, good)) == [(number, PROVED) for number in range(3)]
    other.append(OUT[0], [b"0", b"2", b"4", b"x"])
    *_, last = found(query, good, behind, other)
    assert last.batch == 1
    assert last.why == "topic 'out', partition P: stores have other rows at offsets 2 to 4"
    behind.stop()
    with pytest.raises(StoreUnreachableError):
        found(query, good, behind)


def test_rows_that_the_query_does_not_make_of_its_source_are_named(
    tmp_path: Path, serve: Serve
) -> None:
    sink, source = serve("sink"), serve("source")
    query = AuditedQuery(tmp_path / "c", [sink])
    query.note()
    source.append(IN, [b"%d" % row for row in (*range(4), 4, 5, 6, 8, *range(8, 12))])
    recompute = passed_through([source.client()], query.checkpoint, timeout_s=PATIENCE_S)
    *before, last = verified([sink.client()], query.checkpoint, recompute, timeout_s=PATIENCE_S)
    assert states(before) == [(0, PROVED)]
    assert (last.batch, last.state) == (1, WRONG)
    assert last.why == "made anew from the source it has 4 rows, and stores have 4 others"


def change_offsets(query: AuditedQuery) -> None:
    write(query.checkpoint.path / "offsets" / "1", offsets(ENDS[0]))


def forget_offsets(query: AuditedQuery) -> None:
    (query.checkpoint.path / "offsets" / "0").unlink()
    query.checkpoint = Checkpoint.read(str(query.checkpoint.path))


def forget_source(query: AuditedQuery) -> None:
    query.records = [replace(each, source="") for each in query.records]


@pytest.mark.parametrize(
    ("change", "sources"),
    [
        (change_offsets, [SAME, UNKNOWN]),
        (forget_offsets, [GONE, GONE, SAME]),
        (forget_source, [UNKNOWN] * 3),
    ],
)
def test_the_source_is_compared_as_far_as_it_is_known(
    query: AuditedQuery,
    store: Served,
    change: Callable[[AuditedQuery], None],
    sources: list[str],
) -> None:
    change(query)
    query.note()
    batches = found(query, store, anew=True)
    assert [each.source for each in batches] == sources
    assert [each.recomputed for each in batches] == [
        each.source != GONE and each.state == PROVED for each in batches
    ]


def test_a_query_without_records_cannot_be_verified(tmp_path: Path, store: Served) -> None:
    own = Checkpoint.read(str(checkpoint(tmp_path / "c")))
    with pytest.raises(DafkaError, match=f"query {QUERY} cannot be verified: no store has"):
        list(verified([store.client()], own, timeout_s=PATIENCE_S))
