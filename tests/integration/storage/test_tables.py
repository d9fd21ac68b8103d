"""Rows beside records: lives, other stores, notes; and searches by time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from unittest.mock import Mock

import pytest

from dafka_core.errors import OffsetConflictError, StoreError
from dafka_core.model.epochs import MAX_EPOCHS, NO_LIFE, Epoch, EpochId, History
from dafka_core.model.log_entries import (
    MAX_NOTE_BYTES,
    MAX_NOTE_NAME_BYTES,
    Commit,
    Discard,
    NotedBatch,
    Notes,
    Promise,
    Stage,
    StoreSeen,
)
from dafka_core.model.records import (
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)
from dafka_core.model.values import Values
from dafka_core.storage import Log, PartitionStatistics, entry_writer, snapshot
from dafka_core.storage.block import peek_times
from tests.integration.storage.damage import change, entries, spoil
from tests.integration.storage.processes import TP, P
from tests.integration.storage.staged import TP as STAGED_TP
from tests.integration.storage.staged import A, Clock, clean, held, put, values

FIRST = Epoch.first(EpochId(1, 0xA, 1))
SECOND = Epoch(2, 0xB, 2, 3, FIRST.digest)
THIRD = Epoch(3, 0xC, 1, 5, SECOND.digest)
LIFE = EpochId(9, 0x99, 3)


def batch(start: int, end: int, epoch: Epoch | None) -> RecordBatch:
    records = [b"%d" % offset for offset in range(start, end)]
    return replace(RecordBatch.of(STAGED_TP, start, records), epoch=epoch)


def three_lives(log: Log) -> None:
    log.append([batch(0, 3, FIRST), batch(3, 5, SECOND), batch(5, 9, THIRD)])


def lives(end: int, *history: Epoch, promised: EpochId = NO_LIFE) -> PartitionLives:
    return PartitionLives(end, history, promised)


def epochs_read(log: Log, start: int = 0, end: int = 99) -> list[tuple[int, int, Epoch | None]]:
    """Return the bounds of a read, and its epochs."""
    found: list[tuple[int, int, Epoch | None]] = []
    for each in log.read(STAGED_TP, start, end):
        if found and found[-1][2] == each.epoch:  # small blocks are read one by one
            start, _, epoch = found.pop()
        else:
            start, epoch = each.offset, each.epoch
        found.append((start, each.end, epoch))
    return found


def test_what_nobody_knows_has_no_lives(store: Log) -> None:
    assert store.lives(STAGED_TP) == lives(0)
    assert store.met() == []


def test_epochs_are_there_when_the_log_is_opened_again(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        three_lives(log)
        assert log.lives(STAGED_TP) == lives(9, FIRST, SECOND, THIRD)
    with Log(tmp_path) as log:
        assert log.lives(STAGED_TP) == lives(9, FIRST, SECOND, THIRD)
        assert log.info(STAGED_TP) == PartitionInfo(*STAGED_TP, 0, 9, THIRD.life)
        assert log.partitions() == [PartitionInfo(*STAGED_TP, 0, 9, THIRD.life)]
        assert log.partitions_after(None, None, 9) == log.partitions()
        parts = [(0, 3, FIRST), (3, 5, SECOND), (5, 9, THIRD)]
        assert epochs_read(log) == parts
        assert epochs_read(log, 4, 6) == [(4, 5, SECOND), (5, 6, THIRD)]
        assert held(log) == [b"%d" % offset for offset in range(9)]


def test_the_stores_that_were_met_are_kept(tmp_path: Path) -> None:
    odd = b"\xff odd".decode("utf-8", "surrogateescape")
    with Log(tmp_path) as log:
        assert (
            log.write([StoreSeen("S2"), StoreSeen(odd), StoreSeen("S1"), StoreSeen("S2")])
            == [None] * 4
        )
        put(log, values(3))
    with Log(tmp_path) as log:
        assert [each.store for each in log.met()] == ["S1", "S2", odd]
    change(tmp_path, b"meta", b"met S1", bytes(8) + b"damaged: \xff")
    with Log(tmp_path) as log:
        assert log.met()[0] == StoreSeen("S1", "damaged: \udcff")


def test_only_the_newest_epochs_are_kept(tmp_path: Path) -> None:
    history: History = ()
    with Log(tmp_path) as log:
        entries = []
        for number in range(1, MAX_EPOCHS + 4):
            parent = history[-1].digest if history else 0
            epoch = Epoch(number, 0, 1, number - 1, parent)
            history = (*history, epoch)
            entries.append(batch(number - 1, number, epoch))
        log.append(entries)
    with Log(tmp_path) as log:
        assert log.lives(STAGED_TP) == lives(len(history), *history[-MAX_EPOCHS:])
        # The life of the oldest records is forgotten.
        assert epochs_read(log, 0, 5) == [(0, 3, None), (3, 4, history[3]), (4, 5, history[4])]


# -- transactions ----------------------------------------------------------------------------------


def test_an_epoch_begins_where_its_commit_does(store: Log) -> None:
    store.append([batch(0, 3, FIRST)])
    store.write([Stage(RecordBatch.of(STAGED_TP, 3, values(2)), A, 7)])
    assert store.lives(STAGED_TP) == lives(3, FIRST)
    commit = Commit((StagedTransaction(*STAGED_TP, A, 3, 5, 7),), (SECOND,))
    assert store.write([commit, commit]) == [None, None]
    assert store.lives(STAGED_TP) == lives(5, FIRST, SECOND)._replace(
        transaction=Transaction(7, 3, 5)
    )


def test_an_epoch_of_which_only_a_part_of_a_transaction_came_has_not_begun(store: Log) -> None:
    store.append([batch(0, 3, FIRST)])
    store.append([replace(batch(3, 5, SECOND), transaction=Transaction(1, 3, 6))])
    assert store.lives(STAGED_TP) == lives(3, FIRST)
    # A client writes there instead, in a life of its store.
    other = SECOND._replace(id=0xBB)
    store.append([batch(3, 4, other)])
    assert store.lives(STAGED_TP) == lives(4, FIRST, other)
    store.write([Discard(STAGED_TP, A)])
    assert store.lives(STAGED_TP) == lives(4, FIRST, other)


def test_a_commit_replaces_an_epoch_that_has_not_begun(store: Log) -> None:
    store.append([batch(0, 3, FIRST)])
    store.append([replace(batch(3, 5, SECOND), transaction=Transaction(1, 3, 6))])
    other = SECOND._replace(id=0xBB)
    staged = Stage(RecordBatch.of(STAGED_TP, 3, values(2)), A, 7)
    commit = Commit((StagedTransaction(*STAGED_TP, A, 3, 5, 7),), (other,))
    assert store.write([staged, commit]) == [None, None]
    assert store.lives(STAGED_TP).history == (FIRST, other)
    assert epochs_read(store) == [(0, 3, FIRST), (3, 5, other)]


# -- damage ----------------------------------------------------------------------------------------


def flipped(row: bytes, at: int) -> bytes:
    broken = bytearray(row)
    broken[at] ^= 1
    return bytes(broken)


@pytest.mark.parametrize(
    "damage",
    [
        *(partial(flipped, at=at) for at in (0, 4, 13, 30, -1)),
        *(itemgetter(slice(size_bytes)) for size_bytes in (0, 1, 8, 20, 21, 40)),
    ],
)
def test_damaged_lives_are_told(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    with Log(tmp_path) as log:
        three_lives(log)
    [(key, row)] = entries(tmp_path, b"meta", b"lives of ").items()
    change(tmp_path, b"meta", key, damage(row))
    with Log(tmp_path) as log:
        for use in (
            lambda: log.lives(STAGED_TP),
            lambda: held(log),
            lambda: log.write([Promise(STAGED_TP, LIFE)]),
        ):
            with pytest.raises(StoreError, match="the lives of a partition"):
                use()
    change(tmp_path, b"meta", key, row)
    with Log(tmp_path) as log:
        assert log.lives(STAGED_TP) == lives(9, FIRST, SECOND, THIRD)


def test_damaged_lives_of_one_partition_keep_no_other_one_from_its_readers(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        three_lives(log)
        put(log, values(3), "other")
    [(key, row)] = entries(tmp_path, b"meta", b"lives of ").items()
    change(tmp_path, b"meta", key, row[:-1])
    wanted = [PartitionInfo(*STAGED_TP, 0, 9), PartitionInfo("t", "other", 0, 3)]
    with Log(tmp_path) as log:
        damaged, found = log.read_each(wanted, max_records=99, max_bytes=999)
    assert isinstance(damaged, StoreError)
    assert isinstance(found, RecordBatch)
    assert list(found.values) == values(3)


def test_lives_under_another_partitions_name_are_told(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        three_lives(log)
    [(key, row)] = entries(tmp_path, b"meta", b"lives of ").items()
    with Log(tmp_path) as log:
        log.write([Promise(STAGED_TP._replace(topic="u"), LIFE)])
    [other] = entries(tmp_path, b"meta", b"lives of ").keys() - {key}
    change(tmp_path, b"meta", other, row)
    with Log(tmp_path) as log, pytest.raises(StoreError, match="the lives of a partition"):
        log.lives(STAGED_TP._replace(topic="u"))


LONGEST = "n" * MAX_NOTE_NAME_BYTES


def noted(offset: int, notes: Notes) -> NotedBatch:
    return NotedBatch(STAGED_TP, offset, Values.of(values(2)), notes=notes)


def test_they_are_there_when_the_log_is_opened_again(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        assert log.notes("") == {}
        log.append([noted(0, {"a/2": b"two", "a/1": b"", "b": bytes(MAX_NOTE_BYTES)})])
        log.append([noted(2, {"a/2": b"new", LONGEST: b"x", "\udcff": b"octet"})])
        log.append([noted(4, {"b": None, "none": None})])
    with Log(tmp_path) as log:
        assert held(log) == values(2) * 3
        assert list(log.notes("a/").items()) == [("a/1", b""), ("a/2", b"new")]
        assert log.notes("a/2") == {"a/2": b"new"}
        assert log.notes(LONGEST) == {LONGEST: b"x"}
        assert log.notes("\udcff") == {"\udcff": b"octet"}
        assert log.notes("none") == {}
        assert log.notes("b") == {}


def test_a_batch_that_is_refused_leaves_none(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([noted(0, {"a": b"1"})])
        with pytest.raises(OffsetConflictError):
            log.append([noted(2, {"a": b"2"}), noted(9, {"a": b"3", "b": b"3"})])
        assert (log.notes("a"), log.notes("b"), log.end(STAGED_TP)) == ({"a": b"1"}, {}, 2)


def test_one_that_is_damaged_is_found(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([noted(0, {"a": b"1"})])
    change(tmp_path, b"meta", b"note a", b"2" + bytes(8))
    with Log(tmp_path) as log, pytest.raises(StoreError, match="note 'a' does not match"):
        log.notes("")


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Each append makes a block, 10 microseconds later than the previous one."""
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    clock = Clock()
    clock.now_us = 9_990
    with Log(tmp_path / "store", clock_us=clock) as opened:
        append = opened.append

        def append_later(batches: Sequence[RecordBatch]) -> None:
            clock.now_us += 10
            append(batches)

        monkeypatch.setattr(opened, "append", append_later)
        yield opened


def fill(store: Log, blocks: int) -> None:
    for number in range(blocks):
        store.append([RecordBatch.of(TP, 3 * number, [b"%05d" % number] * 3)])


def test_a_time_is_found_by_a_search(timed: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(timed, 500)
    peek = Mock(wraps=peek_times)
    monkeypatch.setattr(snapshot, "peek_times", peek)
    for time_us, offset in ((10_000, 0), (10_001, 3), (12_000, 600), (14_990, 1497), (0, 0)):
        peek.reset_mock()
        assert timed.offset_for_time(TP, time_us) == offset
        assert 0 < peek.call_count <= 11  # 1500 records, halved each time
    peek.reset_mock()
    assert timed.offset_for_time(TP, 14_991) is None
    assert peek.call_count == 0
    # Merged, fewer rows are read, and the answers are equal.
    clean(timed)
    for time_us, offset in ((10_000, 0), (10_001, 3), (12_000, 600), (14_990, 1497), (0, 0)):
        peek.reset_mock()
        assert timed.offset_for_time(TP, time_us) == offset
        assert peek.call_count < 10


def test_damage_where_a_time_is_looked_up_is_found(tmp_path: Path) -> None:
    values = [b"<%05d>" % number * 3000 for number in range(30)]
    with Log(tmp_path) as store:
        for offset in range(0, 30, 10):
            store.append([RecordBatch.of(TP, offset, values[offset : offset + 10])])
        times = store.times(TP, 0, 30)
    data = (tmp_path / "data.mdb").read_bytes()
    spoil(tmp_path / "data.mdb", values[12])
    with Log(tmp_path) as store:
        assert store.offset_for_time(TP, times[2][1]) == 20
        with pytest.raises(StoreError, match="the block at offset 10 cannot be read: its checksum"):
            store.offset_for_time(TP, times[1][1])
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.seek(data.rindex(b"DafB", 0, data.index(values[10])))
        file.write(b"!")
    with Log(tmp_path) as store:
        for time_us in (times[1][1], times[2][1]):
            with pytest.raises(StoreError, match=r"the block at offset 10 cannot .* not begin"):
                store.offset_for_time(TP, time_us)


def test_statistics(timed: Log) -> None:
    assert timed.statistics(TP) is None
    timed.append(
        [
            RecordBatch.of(TopicPartition("s", P), 0, [b"x" * 100_000]),
            RecordBatch.of(TopicPartition("u", P), 0, [b"y" * 100_000]),
        ]
    )
    fill(timed, 100)
    found = timed.statistics(TP)
    assert found is not None
    size_bytes = found.size_bytes
    assert 100 * 15 < size_bytes < 100 * 100
    assert found == PartitionStatistics("t", P, 0, 300, 300, size_bytes, 10_010, 11_000)
    timed.trim(TP, 31)
    found = timed.statistics(TP)
    assert found == PartitionStatistics("t", P, 31, 300, 269, size_bytes * 9 // 10, 10_110, 11_000)
    clean(timed)
    found = timed.statistics(TP)
    assert found is not None
    assert 90 * 15 < found.size_bytes < size_bytes * 2 / 3
    expected = PartitionStatistics("t", P, 31, 300, 269, found.size_bytes, 10_110, 11_000)
    assert found == expected
    timed.trim(TP, 300)
    assert timed.statistics(TP) == PartitionStatistics("t", P, 300, 300, 0, 0, None, None)
    others = [timed.statistics(TopicPartition(topic, P)) for topic in ("s", "u")]
    assert all(other is not None and other.size_bytes > 100_000 for other in others)
