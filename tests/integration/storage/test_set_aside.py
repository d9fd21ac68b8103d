"""Records replaced by another history leave their partition, and stay on disk."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import RestartPartition, SetAside, TransactionExistsError
from dafka_core.model.records import PartitionInfo, PartitionLives, RecordBatch, Transaction
from dafka_core.storage import Log
from dafka_core.storage.environment import Environment
from dafka_core.storage.set_aside import AsideRecords
from dafka_core.storage.tables import FoundBlock, Tables
from tests.integration.storage.damage import change, entries, spoil
from tests.integration.storage.linked import checked
from tests.integration.storage.staged import TP, clean, held, large, put, stage, values

OLD = Epoch.first(EpochId(1, 0xA, 1))
LOST = Epoch(2, 0xB, 1, 4, OLD.digest)
WON = Epoch(3, 0xC, 1, 4, OLD.digest)


def written(log: Log, epoch: Epoch, offset: int, count: int, name: str) -> list[bytes]:
    found = values(count, name)
    log.append([replace(RecordBatch.of(TP, offset, found), epoch=epoch)])
    return found


def set_aside(log: Log, start: int) -> None:
    assert log.write([SetAside(TP, start)]) == [None]


def aside_values(log: Log, aside_id: int) -> list[bytes]:
    found: list[bytes] = []
    for batch in log.read_aside(aside_id):
        found += batch.values
    return found


def test_they_leave_the_partition_and_are_listed(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        kept = written(log, OLD, 0, 4, "old")
        lost = written(log, LOST, 4, 3, "lost")
        set_aside(log, 4)
    with Log(tmp_path) as log:
        assert held(log) == kept
        assert log.info(TP) == PartitionInfo(*TP, 0, 4, OLD.life)
        assert log.lives(TP) == PartitionLives(4, (OLD,), NO_LIFE)
        [aside] = log.aside()
        assert aside == AsideRecords(aside.id, *TP, 4, 7, aside.size_bytes)
        assert aside.size_bytes > 0
        assert aside_values(log, aside.id) == lost
        [batch] = log.read_aside(aside.id)
        assert (batch.tp, batch.offset) == (TP, 4)
    with Log(tmp_path) as log:
        won = written(log, WON, 4, 5, "won")
        assert held(log) == kept + won
        assert log.lives(TP) == PartitionLives(9, (OLD, WON), NO_LIFE)
        assert aside_values(log, aside.id) == lost


@pytest.mark.parametrize("appends", [1, 8])
def test_of_trimmed_blocks_nothing_stays_in_the_way_of_the_winner(store: Log, appends: int) -> None:
    for first in range(0, 40, 40 // appends):
        old = (large if appends == 1 else values)(40 // appends)
        store.append([replace(RecordBatch.of(TP, first, old), epoch=OLD)])
    store.trim(TP, 30)
    set_aside(store, 20)
    won = written(store, OLD._replace(id=7), 20, 4, "won")
    assert held(store) == won
    assert store.times(TP, 0, 99)[0][0] == 20
    for number in range(50):  # groups are merged
        store.append([RecordBatch.of(TP._replace(partition="q"), number, [b"x"])])
    clean(store)
    assert held(store) == won


def test_none_of_them_is_read_from_a_group_with_another_partitions_damage(tmp_path: Path) -> None:
    other = TP._replace(partition="a")  # its block is the first one of the group
    with Log(tmp_path) as store:
        old = replace(RecordBatch.of(TP, 0, values(4, "old")), epoch=OLD)
        store.append([RecordBatch.of(other, 0, [b"other"]), old])
        [(_, _, [(_, position, _)])], lease = store.lease(
            [(other, 0, 1)], max_blocks=1, max_bytes=1
        )
        assert lease is not None
        store.end_lease(lease.id)
        data = (tmp_path / "data.mdb").read_bytes()
        with (tmp_path / "data.mdb").open("r+b") as file:
            file.seek(position)
            assert data[position : position + 4] == b"DafB"
            file.write(b"!")
        set_aside(store, 2)
        won = written(store, WON._replace(start=2), 2, 4, "won")
        assert held(store) == values(4, "old")[:2] + won
        with pytest.raises(StoreError, match="partition a: the block at offset 0 cannot be read"):
            held(store, "a")


@pytest.mark.parametrize("start", [50, 150, 250])
@pytest.mark.parametrize("size_bytes", [10, 1000])
def test_damaged_records_are_set_aside_too(tmp_path: Path, start: int, size_bytes: int) -> None:
    """The store ended otherwise, at each start."""
    old = [values(100, name, size_bytes) for name in "abc"]
    with Log(tmp_path) as log:
        for first, each in zip((0, 100, 200), old, strict=True):
            log.append([replace(RecordBatch.of(TP, first, each), epoch=OLD)])
    spoil(tmp_path / "data.mdb", b"b7.")
    with Log(tmp_path) as log:
        set_aside(log, start)
        won = written(log, WON._replace(start=start), start, 100, "won")
        clean(log)
        kept = [each for part in old for each in part][:start]
        for first, end in ((0, min(start, 100)), (200, start), (start, start + 100)):
            found = [value for each in log.read(TP, first, end) for value in each.values]
            assert found == [*kept, *won][first:end]
        if start > 100:
            with pytest.raises(StoreError, match="block at offset 100 cannot be read"):
                log.read(TP, 100, start)
            with Log(tmp_path / "good") as good:
                good.append([replace(RecordBatch.of(TP, 0, kept), epoch=OLD)])
                for damage in log.healer.damaged_ranges(TP):
                    for part in good.read(TP, damage.start, damage.end) if damage else ():
                        assert damage is not None
                        assert log.healer.replace(damage, part)
            assert held(log) == [*kept, *won]
        [aside] = log.aside()
        assert aside[3:5] == (start, 300)
        if start != 250:
            with pytest.raises(StoreError, match="cannot be read"):
                aside_values(log, aside.id)


def test_nothing_is_read_where_it_lay_before_a_write(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB: "Values returned from the database are valid only until a subsequent update"."""
    kept = [*written(store, OLD, 0, 4, "old"), *written(store, OLD, 4, 3, "more")]
    packed_block, last_block, found = Tables.packed_block, Tables.last_block, list[memoryview]()

    def finding(tables: Tables, *where: int) -> memoryview | None:
        found.extend([packed] if (packed := packed_block(tables, *where)) else ())
        return packed

    def finding_last(tables: Tables, *where: int) -> FoundBlock | None:
        found.extend([last.packed] if (last := last_block(tables, *where)) else ())
        return last

    def writing(write: Callable[..., None]) -> Callable[..., None]:
        def released(tables: Tables, *what: Any) -> None:
            while found:
                found.pop().release()
            write(tables, *what)

        return released

    monkeypatch.setattr(Tables, "packed_block", finding)
    monkeypatch.setattr(Tables, "last_block", finding_last)
    for name in ("put_block", "delete_blocks"):
        monkeypatch.setattr(Tables, name, writing(getattr(Tables, name)))
    set_aside(store, 2)
    monkeypatch.undo()
    [aside] = store.aside()
    assert held(store) + aside_values(store, aside.id) == kept


@pytest.mark.parametrize(("after", "found"), [(1, 300), (2, 200), (3, 300)])
def test_who_reads_meanwhile_gets_one_history_never_a_mixture(
    store: Log, monkeypatch: pytest.MonkeyPatch, after: int, found: int
) -> None:
    lost = LOST._replace(start=100)
    for first, epoch in ((0, OLD), (100, lost), (200, lost)):
        store.append([replace(RecordBatch.of(TP, first, large(100, "old")), epoch=epoch)])
    reading, reads = Environment.reading, []

    @contextlib.contextmanager
    def replaced(env: Environment) -> Iterator[Tables]:
        """The records are replaced between two blocks of a read."""
        with reading(env) as tables:
            yield tables
        reads.append(env)
        if len(reads) == after:
            won = RecordBatch.of(TP, 100, large(200, "won"))
            store.write([SetAside(TP, 100), replace(won, epoch=WON._replace(start=100))])

    with store.snapshot() as snapshot:
        monkeypatch.setattr(Environment, "reading", replaced)
        batches = store.read(TP, 0, 300)
        monkeypatch.undo()
        # Blocks of the lost history that were read stay alone; a snapshot is of its moment.
        expected = [OLD, lost, lost] if after > 1 else [OLD, WON._replace(start=100)]
        assert [batch.epoch for batch in batches] == expected[: len(batches)]
        assert batches[-1].end == found
        assert held(snapshot) == large(100, "old") * 3
    assert held(store) == large(100, "old") + large(200, "won")
    assert store.offset_for_time(TP, 0) == 0


def test_a_read_that_a_replacement_overtakes_gets_no_block_of_before(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block, of which the cache has the earlier records, begins where it did."""
    old, won = large(100, "old"), large(100, "won")
    store.append([replace(RecordBatch.of(TP, 0, old), epoch=OLD)])
    assert held(store) == old
    reading = Environment.reading

    def overtaken(env: Environment) -> contextlib.AbstractContextManager[Tables]:
        monkeypatch.undo()
        batch = RecordBatch.of(TP, 50, won)
        store.write([SetAside(TP, 50), replace(batch, epoch=WON._replace(start=50))])
        return reading(env)

    monkeypatch.setattr(Environment, "reading", overtaken)
    assert [value for each in store.read(TP, 0, 150) for value in each.values] == old[:50] + won


def test_they_are_discarded_by_their_id(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for name in ("one", "two"):
            written(log, OLD, 0, 4, name)
            set_aside(log, 0)
        first, second = log.aside()
        assert not log.discard_aside(second.id + 1)
        assert log.discard_aside(first.id)
        assert not log.discard_aside(first.id)
        assert list(log.read_aside(first.id)) == []
        assert log.aside() == [second]
        # A partition's id is not one of theirs.
        put(log, values(3))
        assert not log.discard_aside(second.id + 1)
        assert held(log) == values(3)
        # A reader began to read them, and went away.
        begun = log.read_aside(second.id)
        next(begun)
    with Log(tmp_path) as log:
        assert log.aside() == [second]
        assert aside_values(log, second.id) == values(4, "two")


@pytest.mark.parametrize("start", [0, 130])
def test_a_whole_partition_is_set_aside_where_it_is(store: Log, start: int) -> None:
    """It may be larger than the free space of the disk; the winner writes elsewhere."""
    old = [*large(100, "old"), *large(100, "more"), *values(50)]
    for first, count in ((0, 100), (100, 100), (200, 50)):
        store.append([replace(RecordBatch.of(TP, first, old[first : first + count]), epoch=OLD)])
    store.trim(TP, 150)
    store.write([stage([b"staged"], 250)])
    before = store.space().file_bytes - store.space().free_bytes
    if start:
        set_aside(store, start)
    else:
        store.write([RestartPartition(TP, 500, (OLD,))])
        start = 500
    [aside] = store.aside()
    assert aside[1:5] == (*TP, 150, 250)
    assert 100_000 < aside.size_bytes < 110_000
    assert store.space().file_bytes - store.space().free_bytes < before + 20_000
    assert store.staged() == []
    won = written(store, WON._replace(start=start), start, 100, "won")
    clean(store)
    assert held(store) == won
    assert aside_values(store, aside.id) == old[150:]
    assert [batch.offset for batch in store.read_aside(aside.id)] == [150, 200]
    assert checked(store).found == ()
    assert store.discard_aside(aside.id)
    assert (held(store), aside_values(store, aside.id)) == (won, [])
    with store.snapshot() as snapshot:
        assert snapshot.area.of_partition(aside.id) == []
        assert list(snapshot.firsts(aside.id, 0)) == []


def test_a_damaged_list_is_told(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        written(log, OLD, 0, 4, "old")
        set_aside(log, 1)
        [aside] = log.aside()
    key = b"aside " + aside.id.to_bytes(8, "big")
    row = entries(tmp_path, b"meta")[key]
    other_name = row.replace(b"t\0p", b"t\0q")
    assert other_name != row
    for broken in (row[:10], row[:8] + b"\2" + row[9:], other_name):
        change(tmp_path, b"meta", key, broken)
        with Log(tmp_path) as log:
            assert held(log) == values(4, "old")[:1]
            for use in (log.aside, lambda: list(log.read_aside(aside.id))):
                with pytest.raises(StoreError, match=f"entry {aside.id} of the list of set-aside"):
                    use()
    with Log(tmp_path) as log:
        assert log.discard_aside(aside.id)
        assert log.aside() == []


@pytest.mark.parametrize("count", [0, 3])
def test_a_log_goes_on_behind_what_nobody_has(tmp_path: Path, count: int) -> None:
    history, last = (OLD, WON), Transaction(7, 5, 9)
    with Log(tmp_path) as log:
        lost = written(log, OLD, 0, count, "lost") if count else []
        if count:
            log.write([stage([b"staged"], count)])
        assert log.write([RestartPartition(TP, 9, history, last), RestartPartition(TP, 8, ())]) == [
            None,
            None,
        ]
        assert log.info(TP) == PartitionInfo(*TP, 9, 9, WON.life)
    with Log(tmp_path) as log:
        assert log.info(TP) == PartitionInfo(*TP, 9, 9, WON.life)
        assert log.lives(TP) == PartitionLives(9, history, NO_LIFE, last)
        assert log.staged() == []
        (error,) = log.write([stage([b"again"], 9, version=7)])
        assert isinstance(error, TransactionExistsError)
        assert error.transaction == last
        assert [aside_values(log, each.id) for each in log.aside()] == ([lost] if lost else [])
        found = written(log, WON, 9, 4, "found")
        assert [value for batch in log.read(TP, 0, 99) for value in batch.values] == found
        assert log.trim(TP, 10) == 10
