"""Transactions: staged where no reader sees them, committed as a whole by the last attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.errors import FencedError, OffsetConflictError
from dafka_core.model.log_entries import (
    Commit,
    Discard,
    LogEntry,
    SetTransaction,
    TransactionExistsError,
)
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
    C,
    clean,
    commit,
    facts,
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


def test_a_transaction_is_seen_when_it_is_committed(store: Log, clock: Clock) -> None:
    put(store, values(3, "a"))
    clock.now_us = 2_000
    assert store.write([stage(values(2, "b"), 3), stage(values(4, "c"), 5)]) == [None, None]
    assert store.transaction_state(TP) == TransactionState(3, 9, A, None)
    clock.now_us = 3_000
    assert store.write([stage(large(200, "d"), 9)]) == [None]
    assert store.write([one(A, 3, 209, 7)]) == [None]
    assert store.transaction_state(TP) == TransactionState(209, 209, A, Transaction(7, 3, 209))
    assert held(store) == values(3, "a") + values(2, "b") + values(4, "c") + large(200, "d")
    assert store.times(TP, 0, 300) == [(0, 1_000), (3, 2_000), (9, 3_000)]
    found = store.statistics(TP)
    assert found is not None
    assert (found.records, found.last_time_us) == (209, 3_000)


def test_staged_records_keep_the_times_of_the_store(store: Log, clock: Clock) -> None:
    put(store, [b"a"])
    for offset, now_us in enumerate((3_000, 2_000, 500), 1):
        clock.now_us = now_us
        store.write([stage([b"b"], offset)])
    store.write([one(A, 1, 4, 0)])
    put(store, [b"c"])
    times = [(0, 1_000), (1, 3_000), (2, 2_000), (3, 500)]
    assert store.times(TP, 0, 5) == times
    assert store.offset_for_time(TP, 2_500) == 1
    transaction = Transaction(1, 5, 8)
    for offset, now_us in enumerate((5_000, 4_000, 500), 5):
        clock.now_us = now_us
        store.append([RecordBatch.of(TP, offset, [b"d"], transaction)])
    assert store.times(TP, 0, 8) == [*times, (5, 5_000), (6, 4_000), (7, 500)]
    assert store.offset_for_time(TP, 4_000) == 5


def test_a_transaction_without_a_version_is_not_the_last_one(store: Log) -> None:
    store.write([stage([b"a"], 0), one(A, 0, 1, 3), stage([b"b"], 1), one(A, 1, 2, NO_VERSION)])
    assert store.transaction_state(TP) == TransactionState(2, 2, A, Transaction(3, 0, 1))
    put(store, [b"c"])
    assert store.transaction_state(TP) == TransactionState(3, 3, A, Transaction(3, 0, 1))


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
    with pytest.raises(ValueError, match=f"the partition ends at {end}"):
        store.trim(TP, end + 1)
    assert told(store) == seen
    store.write([one(A, end, end + 307, 0)])
    assert len(held(store)) == end + 307


def test_what_is_staged_lasts(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, values(3))
        seen = told(store)
        store.write([stage(large(100, "a"), 3)])
    with Log(tmp_path) as store:
        assert told(store) == seen
        assert store.transaction_state(TP) == TransactionState(3, 103, A, None)
        store.write([stage(values(9, "b"), 103)])
    with Log(tmp_path) as store:
        assert store.write([one(A, 3, 112, 0)]) == [None]
    with Log(tmp_path) as store:
        assert held(store) == values(3) + large(100, "a") + values(9, "b")
        assert store.transaction_state(TP) == TransactionState(112, 112, A, Transaction(0, 3, 112))


# -- fencing --------------------------------------------------------------------------------------


def test_the_last_one_to_begin_wins(store: Log) -> None:
    put(store, values(2))
    store.write([stage(values(5, "a"), 2, A)])
    assert store.write([stage(values(3, "b"), 2, B)]) == [None]
    late: list[LogEntry] = [stage([b"x"], 7, A), one(A, 2, 7, 0), stage([b"x"], 5, A)]
    late.append(Discard(TP, A))
    outcomes = store.write(late)
    fenced = (FencedError, "t", "p", A)
    assert [facts(each) for each in outcomes[:3]] == [fenced] * 3
    assert outcomes[3] is None
    assert store.transaction_state(TP) == TransactionState(2, 5, B, None)
    assert store.write([one(B, 2, 5, 0)]) == [None]
    assert held(store) == values(2) + values(3, "b")
    # The first attempt had two more, so it cannot take the end for that of what it staged.
    outcomes = store.write([stage([b"x"], 7, A), one(A, 2, 7, 0)])
    assert [facts(each) for each in outcomes] == [fenced] * 2
    assert held(store) == values(2) + values(3, "b")


def test_an_attempt_may_begin_again(store: Log) -> None:
    store.write([stage(values(50, "a"), 0), stage(values(5, "b"), 0)])
    assert store.transaction_state(TP) == TransactionState(0, 5, A, None)
    assert store.write([one(A, 0, 5, 1)]) == [None]
    assert held(store) == values(5, "b")


def test_one_that_goes_on_elsewhere_than_where_it_stopped_is_told_where(store: Log) -> None:
    put(store, values(4))
    store.write([stage(values(3), 4)])
    for offset in (3, 5, 8):
        (outcome,) = store.write([stage([b"x"], offset)])
        assert facts(outcome) == (OffsetConflictError, "t", "p", offset, 7)
    (outcome,) = store.write([stage([b"x"], 3, B)])
    assert facts(outcome) == (OffsetConflictError, "t", "p", 3, 4)
    for transaction, offset, end in ((one(A, 3, 7, 0), 3, 4), (one(A, 4, 6, 0), 6, 7)):
        assert facts(store.write([transaction])[0]) == (OffsetConflictError, "t", "p", offset, end)
    assert store.transaction_state(TP) == TransactionState(4, 7, A, None)


def test_older_transactions_are_refused(store: Log) -> None:
    store.write([stage([b"a"], 0, version=5), one(A, 0, 1, 5)])
    there = (TransactionExistsError, "t", "p", Transaction(5, 0, 1))
    for version in (4, 5):
        (outcome,) = store.write([stage([b"x"], 1, B, version=version)])
        assert facts(outcome) == there
    assert store.write([stage([b"b"], 1, B, version=7)]) == [None]
    (outcome,) = store.write([stage([b"x"], 1, C, version=6)])
    assert facts(outcome) == (FencedError, "t", "p", C)
    for version in (4, 5):
        assert facts(store.write([one(B, 1, 2, version)])[0]) == there
    assert store.write([stage([b"c"], 1, C, version=7), one(C, 1, 2, 7)]) == [None, None]
    assert held(store) == [b"a", b"c"]


def test_records_without_a_transaction_replace_what_is_staged(store: Log) -> None:
    put(store, values(2))
    store.write([stage(large(300, "a"), 2)])
    put(store, [b"x"])
    assert store.transaction_state(TP) == TransactionState(3, 3, "", None)
    assert held(store) == [*values(2), b"x"]
    assert facts(store.write([stage([b"y"], 302)])[0]) == (FencedError, "t", "p", A)
    assert facts(store.write([one(A, 2, 302, 0)])[0]) == (FencedError, "t", "p", A)
    store.write([stage([b"y"], 3)])
    with pytest.raises(OffsetConflictError, match="the partition ends at 3"):
        store.append([RecordBatch.of(TP, 4, [b"z"])])


def test_fewer_staged_records_leave_nothing_of_more(store: Log) -> None:
    put(store, values(2))
    store.write([stage(large(900, "a"), 2, A)])
    store.write([stage(large(150, "b"), 2, B), stage(values(3, "c"), 152, B)])
    store.write([one(B, 2, 155, 0)])
    expected = values(2) + large(150, "b") + values(3, "c")
    assert held(store) == expected
    for count in (1, 40, 1, 700):
        put(store, large(count, "d"))
        expected += large(count, "d")
    clean(store)
    assert held(store) == expected
    found = store.statistics(TP)
    assert found is not None
    assert found.size_bytes < sum(map(len, expected)) * 1.1


# -- committing -----------------------------------------------------------------------------------


def test_partitions_are_committed_together_or_not_at_all(store: Log) -> None:
    staged = [
        stage(values(3, name), 0, attempt, name)
        for name, attempt in zip("pqr", (A, B, C), strict=True)
    ]
    store.write(staged)
    nothing = told(store)
    transactions = [("p", A, 0, 3, 1), ("q", B, 0, 3, 1), ("r", C, 0, 3, 1)]
    for wrong in (("r", A, 0, 3, 1), ("r", C, 0, 4, 1), ("r", C, 1, 3, 1), ("s", C, 0, 3, 1)):
        outcomes = store.write([commit(*transactions[:2], wrong), stage([b"more"], 3, A, "p")])
        assert isinstance(outcomes[0], FencedError | OffsetConflictError)
        assert outcomes[1] is None
        assert told(store) == nothing
        store.write(staged[:1])
    assert store.write([commit(*transactions)]) == [None]
    for name, attempt in zip("pqr", (A, B, C), strict=True):
        assert held(store, name) == values(3, name)
        assert store.transaction_state(TopicPartition("t", name)) == TransactionState(
            3, 3, attempt, Transaction(1, 0, 3)
        )


def test_what_is_committed_may_be_committed_again(store: Log) -> None:
    store.write([stage([b"a"], 0, A, "p"), stage([b"b"], 0, B, "q")])
    both = commit(("p", A, 0, 1, 1), ("q", B, 0, 1, 1), ("p", A, 0, 1, 1))
    assert store.write([both, both]) == [None, None]
    seen = told(store)
    assert store.write([both]) == [None]
    assert told(store) == seen
    # Also when others have gone on since.
    put(store, [b"c"])
    store.write([stage([b"d"], 2, C)])
    assert store.write([both]) == [None]
    assert store.transaction_state(TP) == TransactionState(2, 3, C, Transaction(1, 0, 1))
    assert held(store) == [b"a", b"c"]


def test_a_partition_named_twice_is_committed_once(store: Log) -> None:
    store.write([stage([b"a"], 0)])
    (outcome,) = store.write([commit(("p", A, 0, 1, 1), ("p", B, 0, 1, 1))])
    assert facts(outcome) == (FencedError, "t", "p", B)
    assert store.partitions() == []


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
    assert (held(store, "p"), held(store, "q"), held(store, "r")) == (
        [],
        [b"staged"],
        [b"seen"],
    )


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
