"""Transactions in a store: those that clients stage and commit here, and those of others."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.config.node_options import StoreLimitError
from dafka_core.errors import DafkaError, FencedError, OffsetConflictError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import Commit, Discard, LogEntry, SetTransaction, Stage
from dafka_core.model.records import (
    NO_VERSION,
    PartitionLives,
    RecordBatch,
    StagedTransaction,
    Transaction,
)
from dafka_core.protocol import store_requests, timing
from dafka_core.protocol.messages import GetHeads, Head
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_limits import StoreLimits
from dafka_core.protocol.store_requests import (
    MAX_PUBLISHED_TRANSACTIONS,
    HeadsRequest,
    RecordsRequest,
    split_by_transaction,
)
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import (
    PARTITION,
    TOPIC,
    TP,
    batch_of,
    fetches_in,
    offsets_of,
    values_of,
)
from tests.unit.protocol.test_store_role import ME, ack, head

A, B = "A" * 32, "B" * 32
HOSTED = EpochId(1, 0, 1)
"""The first life of what clients write to the store."""
FENCED = FencedError(TOPIC, PARTITION, A)


def in_transaction(start: int, end: int, transaction: Transaction | None) -> RecordBatch:
    return RecordBatch(TP, start, values_of(start, end), transaction)


def committed(start: int, end: int, transactions: tuple[Transaction, ...]) -> RecordsRequest:
    """Return the request to publish records that were committed here."""
    return RecordsRequest("", TP, start, end, transactions=transactions)


def staged(start: int, end: int, attempt: str = A) -> Stage:
    return Stage(batch_of(start, end), attempt, 1)


def commit(start: int, end: int, *, version: int = 1, partition: str = PARTITION) -> Commit:
    return Commit((StagedTransaction(TOPIC, partition, A, start, end, version),))


def role_at(end: int = 0) -> StoreRole:
    role = StoreRole(ME, lambda tp: PartitionLives(end, (), NO_LIFE), sync_interval_s=1_000.0)
    assert role.on_tick(0.0) == [GetHeads("", ME)]
    return role


def store(role: StoreRole, *outcomes: DafkaError | None) -> list[Outgoing]:
    return role.on_stored(role.take_pending(), outcomes)


def transact(role: StoreRole, start: int, end: int, version: int = 1) -> None:
    """Stage and commit records, without writing them."""
    assert role.stage(staged(start, end)) == staged(start, end)
    assert isinstance(role.commit(0.0, commit(start, end, version=version)), Commit)


def taken(role: StoreRole) -> list[LogEntry]:
    return role.take_pending()


# -- staged here ----------------------------------------------------------------------------------


def test_staged_records_are_not_announced() -> None:
    role = role_at(10)
    assert role.stage(staged(10, 20)) == staged(10, 20)
    assert role.pending_bytes == 10 * 9
    assert store(role, None) == []
    assert role.next_offset(TP) == 10
    head(role, 10)
    assert role.on_tick(timing.HOSTED_HEAD_INTERVAL_S) == [ack(10)]
    assert role.requests.take() is None


def test_a_commit_is_acknowledged_and_then_published() -> None:
    role = role_at(10)
    transact(role, 10, 20)
    assert role.pending_bytes == 10 * 9 + 1
    entries = taken(role)
    assert [type(entry) for entry in entries] == [Stage, Commit]
    assert entries[1] == commit(10, 20)._replace(epochs=(Epoch(*HOSTED, 10, 0),))
    assert role.on_stored(entries, [None, None]) == [ack(20, life=HOSTED)]
    assert role.next_offset(TP) == 20
    # Its end is unknown before the records are on their way.
    assert role.on_tick(5.0) == []
    publish = role.requests.take()
    assert publish == committed(10, 20, (Transaction(1, 10, 20),))
    announced = [Head(TOPIC, PARTITION, 19)]
    assert role.hosted.published(publish.tp, publish.end) == announced
    assert role.on_tick(10.0) == announced


def test_a_refused_commit_changes_nothing() -> None:
    role = role_at(10)
    transact(role, 10, 20)
    assert store(role, None, FENCED) == []
    assert role.next_offset(TP) == 10
    assert not role.requests
    role.on_batch(0.0, "", batch_of(10, 15))
    assert store(role) == [ack(15)]


def test_a_repeated_commit_is_published_once() -> None:
    role = role_at(0)
    transact(role, 0, 20)
    role.commit(0.0, commit(0, 20))
    assert store(role) == [ack(20, life=HOSTED)]
    assert role.requests.take() is not None
    role.commit(0.0, commit(0, 20))
    assert store(role) == []
    assert not role.requests


def test_records_that_arrive_during_a_commit_are_requested_after_it() -> None:
    """Only then their place is known: the log would stop at a record that does not fit."""
    for outcome, first in ((None, 20), (FENCED, 10)):
        role = role_at(10)
        transact(role, 10, 20)
        assert role.on_batch(0.0, "", batch_of(10, 15)) == []
        assert role.on_batch(0.0, "", batch_of(20, 25)) == []
        assert isinstance(role.host(0.0, batch_of(10, 15)), OffsetConflictError)
        assert [type(entry) for entry in role.pending] == [Stage, Commit]
        store(role, None, outcome)
        (fetch,) = fetches_in(role.on_tick(0.1))
        assert (fetch.sequence, fetch.end) == (first, 25)
        role.on_batch(0.2, ME, batch_of(first, 25))
        (batch,) = taken(role)
        assert isinstance(batch, RecordBatch)
        assert (batch.offset, batch.end) == (first, 25)


def test_records_kept_behind_a_gap_follow_a_commit() -> None:
    role = role_at(0)
    role.on_batch(0.0, "", batch_of(20, 30))
    transact(role, 0, 20)
    store(role)
    (batch,) = taken(role)
    assert batch == batch_of(20, 30)


def test_entries_reach_the_log_in_order() -> None:
    role = role_at(0)
    role.on_batch(0.0, "", batch_of(0, 10))
    role.stage(staged(0, 5))
    role.write(Discard(TP, A))
    role.write(SetTransaction(TP, Transaction(1, 0, 10)))
    role.commit(0.0, commit(0, 5))
    entries = taken(role)
    assert [type(entry) for entry in entries] == [
        RecordBatch,
        Stage,
        Discard,
        SetTransaction,
        Commit,
    ]
    assert role.pending_bytes == 0
    conflict = OffsetConflictError(TOPIC, PARTITION, 0, 10)
    assert role.on_stored(entries, [None, conflict, None, None, FENCED]) == [ack(10)]


def test_with_too_many_requests_waiting_only_the_head_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_requests, "MAX_PENDING_REQUESTS", 0)
    role = role_at(0)
    transact(role, 0, 20)
    assert store(role) == [ack(20, life=HOSTED), Head(TOPIC, PARTITION, 19)]


def test_partitions_of_commits_are_bounded() -> None:
    role = StoreRole(
        ME,
        lambda tp: PartitionLives(0, (), NO_LIFE),
        sync_interval_s=1_000.0,
        limits=StoreLimits({"max_partitions": 2}),
    )
    assert role.stage(staged(0, 1)) == staged(0, 1)
    many = tuple(StagedTransaction(TOPIC, f"P{n}", A, 0, 1, 1) for n in range(5))
    assert isinstance(role.commit(0.0, Commit(many)), StoreLimitError)
    assert role.limits.refused["max_partitions"] == 1
    assert isinstance(role.stage(Stage(batch_of(0, 1, partition="P9"), A)), StoreLimitError)
    assert [type(entry) for entry in taken(role)] == [Stage]
    assert len(role.partitions) == 2
    # None of them waits for a commit that was not taken.
    assert all(not partition.commits for partition in role.partitions.values())


def test_an_empty_commit() -> None:
    role = role_at(0)
    assert role.commit(0.0, Commit(()))
    assert store(role, None) == []


# -- of other stores ------------------------------------------------------------------------------


def test_a_transaction_is_acknowledged_when_it_is_complete() -> None:
    role = role_at(5)
    transaction = Transaction(3, 5, 30)
    for start, end in pairwise((5, 10, 20)):
        role.on_batch(0.0, "", in_transaction(start, end, transaction))
        assert store(role, None) == []
    head(role, 5)
    assert role.on_tick(1.0) == [ack(5)]
    role.on_batch(2.0, "", in_transaction(20, 30, transaction))
    assert store(role, None) == [ack(30)]


def test_a_transaction_that_the_log_refuses_is_fetched_again() -> None:
    held = [5]
    role = StoreRole(ME, lambda tp: PartitionLives(held[0], (), NO_LIFE), sync_interval_s=1_000.0)
    role.on_tick(0.0)
    transaction = Transaction(3, 5, 30)
    role.on_batch(0.0, "", in_transaction(5, 10, transaction))
    store(role, None)
    role.on_batch(1.0, "", in_transaction(10, 20, transaction))
    under_way = taken(role)
    role.on_batch(1.0, "", in_transaction(20, 25, transaction))
    role.on_batch(1.0, "", batch_of(5, 8, partition="other"))
    assert role.on_stored(under_way, [OffsetConflictError(TOPIC, PARTITION, 10, 5)]) == []
    (fetch,) = fetches_in(role.on_tick(2.0))
    assert (fetch.sequence, fetch.end) == (5, 25)
    # Later records are not passed to the log; those of other partitions are.
    assert [entry.tp.partition for entry in taken(role)] == ["other"]  # type: ignore[union-attr]
    role.on_batch(3.0, ME, in_transaction(5, 30, transaction))
    assert store(role, None) == [ack(30)]


def test_a_client_may_stage_over_a_partial_transaction() -> None:
    role = role_at(5)
    role.on_batch(0.0, "", in_transaction(5, 10, Transaction(3, 5, 30)))
    store(role, None)
    role.on_batch(0.0, "", in_transaction(10, 20, Transaction(3, 5, 30)))
    assert role.next_offset(TP) == 5
    assert role.stage(staged(5, 8)) == staged(5, 8)
    (entry,) = taken(role)
    assert entry == staged(5, 8)
    role.commit(0.0, commit(5, 8))
    assert ack(8, life=HOSTED) in store(role, None)
    (fetch,) = fetches_in(role.on_tick(9.0))  # the node that announced more may have it
    assert (fetch.sequence, fetch.end) == (8, 20)


def test_a_client_may_write_over_a_partial_transaction() -> None:
    role = role_at(5)
    role.on_batch(0.0, "", in_transaction(5, 10, Transaction(3, 5, 30)))
    assert isinstance(role.host(0.0, batch_of(10, 12)), OffsetConflictError)
    assert isinstance(role.host(0.0, batch_of(5, 8)), RecordBatch)
    assert taken(role) == [batch_of(5, 8)]


def test_a_stage_beyond_the_end_does_not_replace_a_partial_transaction() -> None:
    """The attempt's staged records are gone, as the log will report."""
    role = role_at(5)
    role.stage(staged(5, 10))
    role.on_batch(0.0, "", in_transaction(5, 10, Transaction(3, 5, 30)))
    role.stage(staged(10, 12))
    role.on_batch(0.0, "", in_transaction(10, 30, Transaction(3, 5, 30)))
    assert store(role, None, None, FENCED, None) == [ack(30)]


@pytest.mark.parametrize("transaction", [None, Transaction(4, 10, 40)])
def test_a_record_outside_of_a_transaction_completes_it(transaction: Transaction | None) -> None:
    role = role_at(5)
    role.on_batch(0.0, "", in_transaction(5, 10, Transaction(3, 5, 30)))
    role.on_batch(0.0, "", in_transaction(10, 12, transaction))
    assert taken(role) == [in_transaction(5, 10, Transaction(3, 5, 30)), batch_of(10, 12)]


# -- pieces ---------------------------------------------------------------------------------------

TRANSACTIONS = st.lists(st.integers(0, 60), unique=True, max_size=8).map(
    lambda bounds: [
        Transaction(number, start, end)
        for number, (start, end) in enumerate(pairwise(sorted(bounds)))
        if number % 3
    ]
)


@given(st.integers(0, 50), st.integers(1, 30), TRANSACTIONS)
@settings(deadline=None)
def test_batches_are_cut_where_transactions_are(
    start: int, count: int, transactions: Sequence[Transaction]
) -> None:
    batch = batch_of(start, start + count)
    parts = split_by_transaction(batch, transactions)
    assert offsets_of(parts) == list(range(start, start + count))
    for part in parts:
        of = [
            transaction
            for transaction in transactions
            if transaction.start < part.end and part.offset < transaction.end
        ]
        assert of == ([part.transaction] if part.transaction else [])
        assert (
            part.transaction is None
            or part.transaction.start <= part.offset < part.end <= part.transaction.end
        )
    for one, other in pairwise(parts):
        assert one.transaction != other.transaction


def test_a_batch_within_one_transaction_is_not_copied() -> None:
    batch = batch_of(3, 9)
    for transactions in ((), (Transaction(1, 0, 10),)):
        (part,) = split_by_transaction(batch, transactions)
        assert part.values is batch.values


def test_consecutive_commits_are_published_together() -> None:
    first = committed(0, 10, (Transaction(1, 0, 10),))
    second = committed(10, 30, (Transaction(2, 10, 30),))
    both = first.joined(second)
    assert both == committed(0, 30, (Transaction(1, 0, 10), Transaction(2, 10, 30)))
    assert both.rest(5) == committed(5, 30, both.transactions)
    assert both.rest(10) == second
    apart = committed(40, 50, (Transaction(NO_VERSION, 40, 50),))
    assert both.joined(apart) == apart
    for number in range(3, 3 + 2 * MAX_PUBLISHED_TRANSACTIONS):
        end = both.end
        both = both.joined(committed(end, end + 1, (Transaction(number, end, end + 1),)))
    assert both.start == 0
    assert len(both.transactions) == MAX_PUBLISHED_TRANSACTIONS
    assert both.transactions[-1].end == both.end


def test_the_rest_of_a_publication_precedes_newer_commits() -> None:
    role = role_at(0)
    transact(role, 0, 20)
    store(role)
    publish = role.requests.take()
    assert isinstance(publish, RecordsRequest)
    transact(role, 20, 25, version=2)
    store(role)
    role.on_subscribed(0.0, Head, "")
    role.requests.put_back(publish.rest(8))
    assert role.requests.take() == HeadsRequest("", ("",))
    transactions = (Transaction(1, 0, 20), Transaction(2, 20, 25))
    assert role.requests.take() == committed(8, 25, transactions)
