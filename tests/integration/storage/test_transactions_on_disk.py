"""Transactions: staged where no reader sees them, committed as a whole by the last attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.errors import FencedError, OffsetConflictError
from dafka_core.model.log_entries import Commit, Discard, LogEntry, SetTransaction
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction, TransactionState
from dafka_core.storage import Log
from tests.integration.storage.clocks import Clock
from tests.integration.storage.staged import (
    TP,
    A,
    B,
    clean,
    commit,
    held,
    large,
    one,
    put,
    stage,
    told,
    values,
)

# -- staging --------------------------------------------------------------------------------------


def test_an_empty_log_has_no_transactions(store: Log) -> None:
    assert store.transaction_state(TP) == TransactionState(0, 0, "", None)
    assert store.write([]) == []
    assert store.write([Commit(())]) == [None]
    assert store.write([Discard(TP, A)]) == [None]
    assert store.partitions() == []


@pytest.mark.parametrize("before", [0, 3, 500])
def test_no_reader_sees_what_is_staged(
    tmp_path: Path, store: Log, clock: Clock, before: int
) -> None:
    if before:
        put(store, large(before, "a"))
        put(store, values(5, "b"))
    end = store.end(TP)
    seen = told(store)
    with store.snapshot() as earlier:
        clock.now_us = 2_000
        staged = [
            stage(large(300, "c"), end),
            stage(values(7), end + 300),
            stage([b"d"], 0, B, "q"),
        ]
        assert store.write(staged) == [None, None, None]
        clean(store)
        assert told(store) == seen
        assert held(earlier) == seen["p"][2]  # type: ignore[index]
    assert store.trim(TP, end + 1) == end  # staged records are after it
    store.write([one(A, end, end + 307, 0)])
    assert len(held(store)) == 307


# -- committing -----------------------------------------------------------------------------------


def test_an_entry_that_is_refused_leaves_the_others(store: Log) -> None:
    entries: list[LogEntry] = [
        RecordBatch.of(TopicPartition("t", "r"), 0, [b"seen"]),
        stage([b"x"], 4, A, "p"),
        stage([b"staged"], 0, B, "q"),
        commit(("q", B, 0, 1, 0), ("p", A, 0, 4, 0)),
        commit(("q", B, 0, 1, 0)),
    ]
    outcomes = store.write(entries)
    assert [each is None for each in outcomes] == [True, False, True, False, True]
    assert (held(store, "p"), held(store, "q"), held(store, "r")) == ([], [b"staged"], [b"seen"])


def test_a_wrong_batch_takes_all_with_it(store: Log) -> None:
    seen = told(store)
    with pytest.raises(OffsetConflictError):
        store.write(
            [stage([b"a"], 0), one(A, 0, 1, 0), RecordBatch.of(TopicPartition("t", "q"), 1, [b"x"])]
        )
    assert told(store) == seen
    assert store.transaction_state(TP) == TransactionState(0, 0, "", None)


@pytest.mark.parametrize("attempt", ["", "a" * 32, "A" * 31, "A" * 34, "0" * 32, "G" * 32, "é"])
def test_what_is_no_attempt_is_refused(store: Log, attempt: str) -> None:
    for entry in (stage([b"a"], 0, attempt), one(attempt, 0, 1, 0), Discard(TP, attempt)):
        if not (attempt == "" and isinstance(entry, Discard)):
            with pytest.raises(ValueError, match=r"32 upper-case hex digits"):
                store.write([entry])


@pytest.mark.parametrize("version", [-2, 2**63])
def test_what_is_no_version_is_refused(store: Log, version: int) -> None:
    store.write([stage([b"a"], 0)])
    transaction = Transaction(version, 0, 1)
    for entry in (
        stage([b"b"], 1, version=version),
        one(A, 0, 1, version),
        SetTransaction(TP, transaction),
        RecordBatch.of(TP, 0, [b"c"], transaction),
    ):
        with pytest.raises(ValueError, match="a transaction's version is"):
            store.write([entry])
    assert store.write([one(A, 0, 1, 2**63 - 1)]) == [None]
    assert store.transaction_state(TP).transaction == Transaction(2**63 - 1, 0, 1)


@pytest.mark.parametrize("offset", [-1, 2**63, 2**64, 2**70])
def test_offsets_that_cannot_be_are_refused(store: Log, offset: int) -> None:
    store.write([stage([b"a"], 0)])
    outcomes = store.write(
        [
            stage([b"b"], offset),
            one(A, offset, 1, 0),
            one(A, 0, offset, 0),
            stage([b"b"], offset, B),
        ]
    )
    for outcome in outcomes:
        assert isinstance(outcome, OffsetConflictError | FencedError)
    assert store.transaction_state(TP) == TransactionState(0, 1, A, None)
