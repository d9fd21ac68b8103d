"""Transactions that another store has committed: whole here, too, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import FencedError, OffsetConflictError
from dafka_core.model.log_entries import Discard, SetTransaction
from dafka_core.model.records import (
    NO_VERSION,
    RecordBatch,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import Log
from tests.integration.storage.clocks import Clock
from tests.integration.storage.staged import (
    TP,
    A,
    B,
    facts,
    held,
    large,
    one,
    part,
    put,
    stage,
    told,
    values,
)

TRANSACTION = Transaction(4, 3, 303)
RECORDS = large(300, "u")


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    """A log with three records."""
    with Log(tmp_path / "store", clock_us=clock) as opened:
        put(opened, values(3))
        yield opened


def test_a_whole_transaction_is_seen_at_once(store: Log) -> None:
    assert store.write([part(RECORDS, TRANSACTION, 3, 303)]) == [None]
    assert store.transaction_state(TP) == TransactionState(303, 303, "", TRANSACTION)
    assert held(store) == values(3) + RECORDS
    put(store, [b"next"])
    assert store.transaction_state(TP) == TransactionState(304, 304, "", TRANSACTION)


@pytest.mark.parametrize("ends", [(150, 303), (4, 5, 100, 302, 303)])
@pytest.mark.parametrize("together", [False, True])
def test_parts_of_a_transaction_are_seen_with_the_last_one(
    store: Log, clock: Clock, ends: tuple[int, ...], together: bool
) -> None:
    seen = told(store)
    batches = [
        part(RECORDS, TRANSACTION, start, end) for start, end in zip((3, *ends), ends, strict=False)
    ]
    if together:
        store.append(batches)
    else:
        for batch in batches[:-1]:
            clock.now_us += 1_000
            store.append([batch])
            assert told(store) == seen
            assert store.transaction_state(TP) == TransactionState(3, batch.end, "", None)
        store.append(batches[-1:])
    assert store.transaction_state(TP) == TransactionState(303, 303, "", TRANSACTION)
    assert held(store) == values(3) + RECORDS
    assert len(store.times(TP, 3, 303)) == (1 if together else len(batches) - 1)


def test_a_transaction_without_a_version_is_whole_and_not_the_last_one(store: Log) -> None:
    store.append([part(RECORDS, TRANSACTION, 3, 303)])
    other = Transaction(NO_VERSION, 303, 306)
    store.append([part(values(3), other, 303, 304)])
    assert store.end(TP) == 303
    store.append([part(values(3), other, 304, 306)])
    assert store.transaction_state(TP) == TransactionState(306, 306, "", TRANSACTION)


def test_a_transaction_begins_anew_at_the_end(store: Log) -> None:
    store.append([part(large(300, "x"), TRANSACTION, 3, 203)])
    store.append([part(RECORDS, TRANSACTION, 3, 103)])
    assert store.transaction_state(TP) == TransactionState(3, 103, "", None)
    store.append([part(RECORDS, TRANSACTION, 103, 303)])
    assert held(store) == values(3) + RECORDS
    again = Transaction(5, 303, 313)
    store.append([part(large(10), again, 303, 308)])
    store.append([part(values(10), again, 303, 313)])
    assert held(store) == values(3) + RECORDS + values(10)
    assert store.transaction_state(TP).transaction == again


def test_another_transaction_does_not_go_on_with_what_is_staged(store: Log) -> None:
    store.append([part(RECORDS, TRANSACTION, 3, 103)])
    for other in (
        Transaction(5, 3, 303),
        Transaction(4, 3, 304),
        Transaction(4, 2, 303),
        Transaction(4, 103, 303),
    ):
        (outcome,) = store.write([RecordBatch.of(TP, 103, [b"x"], other)])
        assert facts(outcome) == (OffsetConflictError, "t", "p", 103, 3)
    for offset in (2, 4, 102, 104):
        (outcome,) = store.write([RecordBatch.of(TP, offset, [b"x"], Transaction(4, 0, 303))])
        assert facts(outcome) == (OffsetConflictError, "t", "p", offset, 3)
    with pytest.raises(OffsetConflictError):
        store.append([RecordBatch.of(TP, 103, [b"x"], Transaction(5, 3, 303))])
    assert store.transaction_state(TP) == TransactionState(3, 103, "", None)
    unknown = TopicPartition("t", "q")
    (outcome,) = store.write([RecordBatch.of(unknown, 1, [b"x"], Transaction(5, 0, 3))])
    assert facts(outcome) == (OffsetConflictError, "t", "q", 1, 0)
    assert store.info(unknown) is None


@pytest.mark.parametrize(("start", "end"), [(2, 5), (302, 305), (2, 305)])
def test_a_batch_must_lie_in_its_transaction(store: Log, start: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"not all of transaction 4, which has 3 to 303"):
        store.append([RecordBatch.of(TP, start, values(end - start), TRANSACTION)])


def test_records_without_a_transaction_show_that_the_one_before_them_is_whole(store: Log) -> None:
    """The other store does not remember it any more."""
    store.append([part(RECORDS, TRANSACTION, 3, 103), part(RECORDS, TRANSACTION, 103, 110)])
    store.append([RecordBatch.of(TP, 110, RECORDS[107:200])])
    assert store.transaction_state(TP) == TransactionState(203, 203, "", None)
    assert held(store) == values(3) + RECORDS[:200]
    store.append([RecordBatch.of(TP, 203, [*RECORDS[200:], b"next"])])
    assert held(store) == [*values(3), *RECORDS, b"next"]


@pytest.mark.parametrize("more", [0, 5])
def test_a_transaction_is_the_last_one_with_the_rest_of_it(store: Log, more: int) -> None:
    store.append([part(RECORDS, TRANSACTION, 3, 103)])
    store.append([RecordBatch.of(TP, 103, RECORDS[100:] + values(more))])
    assert store.transaction_state(TP) == TransactionState(303 + more, 303 + more, "", TRANSACTION)
    assert held(store) == values(3) + RECORDS + values(more)


def test_records_without_a_transaction_begin_anew_at_the_end(store: Log) -> None:
    store.append([part(RECORDS, TRANSACTION, 3, 103)])
    store.append([RecordBatch.of(TP, 3, [b"x"])])
    assert store.transaction_state(TP) == TransactionState(4, 4, "", None)
    assert held(store) == [*values(3), b"x"]
    with pytest.raises(OffsetConflictError, match="the partition ends at 4"):
        store.append([RecordBatch.of(TP, 103, [b"x"])])


def test_older_transactions_do_not_come_back(store: Log) -> None:
    newer = Transaction(9, 0, 3)
    store.write([SetTransaction(TP, newer)])
    store.append([part(RECORDS, TRANSACTION, 3, 303)])
    assert store.transaction_state(TP) == TransactionState(303, 303, "", newer)
    again = Transaction(8, 303, 306)
    store.append([part(values(3), again, 303, 304), part(values(3), again, 304, 306)])
    assert store.transaction_state(TP) == TransactionState(306, 306, "", newer)
    again = Transaction(8, 306, 309)
    store.append([part(values(3), again, 306, 307)])
    store.append([RecordBatch.of(TP, 307, values(2))])
    assert store.transaction_state(TP) == TransactionState(309, 309, "", newer)


def test_replicas_and_attempts_take_over_from_each_other(store: Log) -> None:
    store.append([part(RECORDS, TRANSACTION, 3, 103)])
    (outcome,) = store.write([stage([b"x"], 103)])
    assert facts(outcome) == (FencedError, "t", "p", A)
    (outcome,) = store.write([stage([b"x"], 3, version=3)])
    assert facts(outcome) == (FencedError, "t", "p", A)
    assert store.write([stage(large(200), 3, version=4)]) == [None]
    (outcome,) = store.write([part(RECORDS, TRANSACTION, 103, 203)])
    assert facts(outcome) == (OffsetConflictError, "t", "p", 103, 3)
    assert store.write([part(RECORDS, TRANSACTION, 3, 303)]) == [None]
    (outcome,) = store.write([one(A, 3, 203, 4)])
    assert facts(outcome) == (FencedError, "t", "p", A)
    assert held(store) == values(3) + RECORDS
    store.write([stage([b"a"], 303, B), one(B, 303, 304, 5)])
    store.write([part(values(2), Transaction(6, 304, 306), 304, 305)])
    store.write([part(values(2), Transaction(6, 304, 306), 305, 306)])
    assert store.write([one(B, 303, 304, 5)]) == [None]
    assert store.transaction_state(TP) == TransactionState(306, 306, B, Transaction(6, 304, 306))


def test_what_another_store_did_not_finish_is_discarded(store: Log) -> None:
    store.append([part(RECORDS, TRANSACTION, 3, 103)])
    assert store.write([Discard(TP, A), Discard(TP, "")]) == [None, None]
    assert store.transaction_state(TP) == TransactionState(3, 3, "", None)
    (outcome,) = store.write([part(RECORDS, TRANSACTION, 103, 303)])
    assert facts(outcome) == (OffsetConflictError, "t", "p", 103, 3)


def test_a_transaction_in_parts_lasts(tmp_path: Path) -> None:
    transaction = Transaction(0, 0, 300)
    with Log(tmp_path) as store:
        store.append([part(RECORDS, transaction, 0, 100)])
    with Log(tmp_path) as store:
        assert store.partitions() == []
        assert store.transaction_state(TP) == TransactionState(0, 100, "", None)
        store.append([part(RECORDS, transaction, 100, 300)])
    with Log(tmp_path) as store:
        assert held(store) == RECORDS
        assert store.transaction_state(TP) == TransactionState(300, 300, "", transaction)
