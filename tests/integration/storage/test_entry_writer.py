"""Entries: staged and committed as a whole, or refused; staged records; and rows on disk."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from dafka_core.config.node_options import STAGED_HOURS
from dafka_core.errors import ClosedError, FencedError, OffsetConflictError, StoreError
from dafka_core.model.log_entries import (
    Commit,
    Discard,
    LogEntry,
    NameClient,
    SetTransaction,
    TransactionExistsError,
)
from dafka_core.model.records import (
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import Log, block
from tests.integration.storage.damage import change, entries
from tests.integration.storage.staged import (
    TP,
    A,
    B,
    Clock,
    clean,
    commit,
    facts,
    held,
    large,
    one,
    put,
    stage,
    values,
)


def test_an_empty_log_has_no_transactions(store: Log) -> None:
    assert store.transaction_state(TP) == TransactionState(0, 0, "", None)
    assert store.write([]) == []
    assert store.write([Commit(())]) == [None]
    assert store.write([Discard(TP, A)]) == [None]
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
    assert (held(store, "p"), held(store, "q"), held(store, "r")) == ([], [b"staged"], [b"seen"])


def test_a_wrong_batch_takes_all_with_it(store: Log) -> None:
    with pytest.raises(OffsetConflictError):
        store.write(
            [stage([b"a"], 0), one(A, 0, 1, 0), RecordBatch.of(TopicPartition("t", "q"), 1, [b"x"])]
        )
    assert store.partitions() == []
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


def test_another_transaction_does_not_go_on_with_what_is_staged(store: Log) -> None:
    staged = Transaction(4, 0, 300)
    store.append([RecordBatch.of(TP, 0, values(100), staged)])
    others = (Transaction(5, 0, 300), Transaction(4, 0, 301), Transaction(4, 100, 300))
    asked = [*((100, other) for other in others), *((offset, staged) for offset in (1, 99, 101))]
    for offset, transaction in asked:
        (outcome,) = store.write([RecordBatch.of(TP, offset, [b"x"], transaction)])
        assert facts(outcome) == (OffsetConflictError, "t", "p", offset, 0)
    with pytest.raises(OffsetConflictError):
        store.append([RecordBatch.of(TP, 100, [b"x"], others[0])])
    assert store.transaction_state(TP) == TransactionState(0, 100, "", None)
    unknown = TopicPartition("t", "q")
    (outcome,) = store.write([RecordBatch.of(unknown, 1, [b"x"], Transaction(5, 0, 3))])
    assert facts(outcome) == (OffsetConflictError, "t", "q", 1, 0)
    assert store.info(unknown) is None


def test_a_transaction_that_is_set_is_not_committed_again(store: Log) -> None:
    put(store, values(4))
    store.write([stage([b"x"], 4, version=3), SetTransaction(TP, Transaction(3, 0, 4))])
    (outcome,) = store.write([one(A, 4, 5, 3)])
    assert facts(outcome) == (TransactionExistsError, "t", "p", Transaction(3, 0, 4))


def test_an_older_version_does_not_replace_a_staged_one(store: Log) -> None:
    store.write([stage([b"new"], 0, A, version=4)])
    (outcome,) = store.write([stage([b"old"], 0, B, version=3)])
    assert facts(outcome) == (FencedError, "t", "p", B)
    assert store.write([one(A, 0, 1, 4)]) == [None]
    assert held(store) == [b"new"]


def test_older_transactions_do_not_come_back(store: Log) -> None:
    newer, older = Transaction(9, 0, 3), Transaction(8, 3, 6)
    put(store, values(3))
    store.write([SetTransaction(TP, newer)])
    for start, end in ((3, 4), (4, 6)):
        store.append([RecordBatch.of(TP, start, values(end - start), older)])
    assert store.transaction_state(TP) == TransactionState(6, 6, "", newer)


@pytest.mark.parametrize(("start", "end"), [(2, 5), (302, 305), (2, 305)])
def test_a_batch_must_lie_in_its_transaction(store: Log, start: int, end: int) -> None:
    put(store, values(3))
    batch = RecordBatch.of(TP, start, values(end - start), Transaction(4, 3, 303))
    with pytest.raises(ValueError, match=r"not all of transaction 4, which has 3 to 303"):
        store.append([batch])


def test_discarding_frees_space(store: Log, tmp_path: Path) -> None:
    for _ in range(30):
        store.write([stage(large(1000), 0), Discard(TP, A)])
        store.write([stage(large(1000), 0)])
        store.write([Discard(TP, A)])
    assert (tmp_path / "store" / "data.mdb").stat().st_size < 12 << 20


def test_what_was_staged_long_ago_is_discarded(tmp_path: Path, clock: Clock) -> None:
    older_s = STAGED_HOURS * 3600.0
    gone_on, replica = TopicPartition("t", "q"), TopicPartition("t", "u")
    with Log(tmp_path, clock_us=clock) as store:
        assert store.discard_stale(0) == 0
        put(store, [b"a"])
        for name in ("p", "q", "r"):
            store.write([stage([b"x"], store.end(TopicPartition("t", name)), A, name)])
        store.write([RecordBatch.of(replica, 0, [b"x"], Transaction(0, 0, 2))])
        clock.now_us += 3_600_000_000
        store.write([stage([b"y"], 1, A, "q"), commit(("r", A, 0, 1, 0))])
        assert store.discard_stale(older_s) == 0
        listed = {each.partition: each for each in store.staged()}
        size_bytes = listed["q"].size_bytes
        assert listed["q"] == ("t", "q", A, 0, 2, size_bytes, clock.now_us)
        assert listed["p"][:5] == ("t", "p", A, 1, 2)
        assert listed["u"][:5] == ("t", "u", "", 0, 1)
        assert (set(listed), 0 < size_bytes < 1000) == ({"p", "q", "u"}, True)
        clock.now_us += 23 * 3_600_000_000
        assert store.discard_stale(older_s) == 0
    with Log(tmp_path, clock_us=clock) as store:
        clock.now_us += 1
        assert store.discard_stale(older_s, replicas=False) == 1
        assert store.transaction_state(replica) == TransactionState(0, 1, "", None)
        assert store.discard_stale(older_s) == 1
        assert store.transaction_state(TP) == TransactionState(1, 1, "", None)
        assert store.transaction_state(gone_on) == TransactionState(0, 2, A, None)
        assert store.transaction_state(replica) == TransactionState(0, 0, "", None)
        assert (held(store), held(store, "r")) == ([b"a"], [b"x"])
        clock.now_us += 3_600_000_000
        assert store.discard_stale(older_s) == 1
        assert store.discard_stale(0) == 0
    with pytest.raises(ClosedError):
        store.discard_stale(0)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A log whose full blocks have 1000 records, and whose last blocks are not extended."""
    monkeypatch.setattr(block, "MAX_BLOCK_RECORDS", 1000)
    monkeypatch.setattr("dafka_core.storage.entry_writer.SMALL_BLOCK_BYTES", 1)
    with Log(tmp_path / "store") as opened:
        yield opened


def sizes(store: Log) -> list[int]:
    with store.snapshot() as snapshot:
        return [batch.count for batch in snapshot.read(TP, 0, 1 << 40)]


@pytest.mark.parametrize("again", [False, True])
def test_blocks_are_merged_only_within_what_is_seen(
    small: Log, tmp_path: Path, again: bool
) -> None:
    for _ in range(20):
        put(small, [b"a"])
    for offset in range(20, 100):
        small.write([stage([b"b"], offset)])
    store = small
    if again:
        small.close()
        store = Log(tmp_path / "store")
    with store:
        clean(store)
        assert len(sizes(store)) < 20
        assert held(store) == [b"a"] * 20
        assert store.transaction_state(TP) == TransactionState(20, 100, A, None)
        store.write([one(A, 20, 100, 0)])
        assert len(sizes(store)) > 80
        clean(store)
        assert len(sizes(store)) < 20
        for _ in range(8):
            put(store, [b"c"])
        clean(store)
        assert len(sizes(store)) < 20
        assert held(store) == [b"a"] * 20 + [b"b"] * 80 + [b"c"] * 8


def test_small_transactions_are_merged(store: Log) -> None:
    clean(store)  # reported at the start, and not again
    put(store, [b"a"])
    for number in range(20):
        store.write([stage([b"b"], number + 1), one(A, number + 1, number + 2, number)])
    assert sizes(store) == [1] * 21
    clean(store)
    assert len(sizes(store)) < 10
    put(store, [b"c"])
    assert held(store) == [b"a", *[b"b"] * 20, b"c"]


@pytest.mark.parametrize(
    "transaction",
    [Transaction(1, 2, 2), Transaction(1, 3, 2), Transaction(1, -1, 2), Transaction(1, 0, 2**64)],
)
def test_what_is_no_transaction_is_refused(store: Log, transaction: Transaction) -> None:
    put(store, values(4))
    with pytest.raises(ValueError, match="a transaction cannot have the records from"):
        store.write([SetTransaction(TP, transaction)])
    with pytest.raises(ValueError, match="a transaction cannot have the records from"):
        store.append([RecordBatch.of(TP, 4, [b"x"], transaction)])


def test_transactions_of_a_partition_whose_name_is_odd(store: Log) -> None:
    name = "ü\udcff"
    store.write([stage([b"a"], 0, partition=name)])
    assert store.partitions() == []
    assert store.write([Commit((StagedTransaction("t", name, A, 0, 1, 0),))]) == [None]
    assert store.end(TopicPartition("t", name)) == 1


def checked(key: bytes, row: bytes) -> bytes:
    return row + struct.pack("<Q", xxhash.xxh3_64_intdigest(key + row))


def test_rows_are_short_while_there_are_no_transactions(tmp_path: Path) -> None:
    with Log(tmp_path, clock_us=Clock()) as store:
        put(store, values(4))
        assert store.trim(TP, 1) == 1
        put(store, values(2), "q")
        named = TopicPartition("t", "q")
        for client in ("another", "été", "été"):
            assert store.write([NameClient(named, client)]) == [None]
        assert store.write([NameClient(TopicPartition("t", "none"), "x")]) == [None]
    expected = [
        checked(b"t\0p", struct.pack("<QQQqqB", 0, 1, 4, 1000, 0, 0)),
        checked(b"t\0q", struct.pack("<QQQqqB5s", 1, 0, 2, 1000, 0, 5, "été".encode())),
    ]
    assert entries(tmp_path, b"meta", b"format") == {b"format": b"\6\0\0\0"}
    assert [*entries(tmp_path, b"partitions").values()] == expected
    with Log(tmp_path) as store:
        store.write([stage([b"x"], 4), Discard(TP, A)])
        store.write([stage([b"x"], 0, partition="r"), Discard(TopicPartition("t", "r"), A)])
    assert [*entries(tmp_path, b"partitions").values()] == expected


def refused(directory: Path, why: str) -> None:
    """A damaged row is neither extended nor read."""
    with pytest.raises(StoreError, match=why):
        Log(directory)


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 39, 48, 64, 151])
def test_no_octet_of_a_row_can_change(tmp_path: Path, at: int) -> None:
    with Log(tmp_path) as store:
        put(store, values(4))
        if at >= 40:
            store.write([stage([b"x"], 4)])
    row = bytearray(entries(tmp_path, b"partitions")[b"t\0p"])
    row[at] ^= 1
    change(tmp_path, b"partitions", b"t\0p", bytes(row))
    refused(tmp_path, r"partition p: .*does not match its checksum")


def test_a_row_cannot_come_under_another_name(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, values(4))
    row = entries(tmp_path, b"partitions")[b"t\0p"]
    change(tmp_path, b"partitions", b"t\0p", None)
    change(tmp_path, b"partitions", b"t\0r", row)
    refused(tmp_path, r"partition r: .*does not match its checksum")


def test_no_row_can_be_missing(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        for partition in ("p", "q"):
            put(store, values(4), partition)
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    counted = struct.Struct("<IHHQQQQ")  # LMDB's description of a table, up to its number of rows
    at = -1
    while (at := data.find(b"partitions", at + 1)) >= 0:
        *facts, rows_there = counted.unpack_from(data, at + len(b"partitions"))
        if rows_there == 2:
            counted.pack_into(data, at + len(b"partitions"), *facts, 3)
    (tmp_path / "data.mdb").write_bytes(data)
    refused(tmp_path, "the table of partitions has 2 rows instead of 3")


@pytest.mark.parametrize("size", [0, 7, 31, 32, 33, 39, 41, 144, 151, 153])
def test_a_row_of_no_form_is_damage(tmp_path: Path, size: int) -> None:
    with Log(tmp_path) as store:
        put(store, values(4))
    change(tmp_path, b"partitions", b"t\0p", bytes(size))
    refused(tmp_path, f"partition p: .*row cannot have {size} bytes")
