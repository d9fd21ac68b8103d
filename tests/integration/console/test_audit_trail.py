"""What queries have noted of their batches."""

from __future__ import annotations

from pathlib import Path

from dafka_core.console.audit_trail import audited_queries, noted, trail
from dafka_core.queries.audit_record import AuditedRange, AuditRecord, chained, partition_of
from dafka_core.testing import StoreDouble
from tests.integration.console.test_browsing import seen

QUERY = "7090e364-0000-0000-0000-000000000000"


def record(batch: int, previous: bytes) -> bytes:
    ranges = (AuditedRange("out", "A" * 32, batch * 10, batch * 10 + 10, "10:AB"),)
    return AuditRecord(QUERY, batch, 10, ranges, "5e88", chained(previous)).packed()


def test_batches_are_listed_with_their_ranges_and_a_chain_that_holds(tmp_path: Path) -> None:
    contents, tp = [b""], partition_of(QUERY)
    for batch in range(3):
        contents.append(record(batch, contents[-1]))
    with StoreDouble(tmp_path) as store:
        store.append(tp, contents[1:])
        clients, snapshot = [store.client()], seen(store)
        assert noted(snapshot) == {tp: 3}
        (query,) = audited_queries(clients, snapshot)
        assert (query["query"], query["batch"], query["batches"]) == (QUERY, 2, 3)
        rows = trail(clients, snapshot, tp.partition)
        assert [(row["batch"], row["chain"]) for row in rows] == [
            (2, "holds"),
            (1, "holds"),
            (0, "begins"),
        ]
        assert rows[0]["ranges"][0]["start"] == 20


def test_a_chain_that_somebody_broke_and_what_is_no_record(tmp_path: Path) -> None:
    tp = partition_of(QUERY)
    first = record(0, b"")
    with StoreDouble(tmp_path) as store:
        store.append(tp, [first, record(1, b"another"), b"<script>", record(2, b"<script>")])
        rows = trail([store.client()], seen(store), tp.partition)
        assert [row["chain"] for row in rows] == ["holds", "no record", "broken", "begins"]
        store.append(tp, [b"noise"])
        assert audited_queries([store.client()], seen(store)) == []
