"""A check finds every kind of damage, names it, and continues after it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.log_check import (
    ASIDE,
    BLOCK,
    EPOCHS,
    HOLE,
    NOTES,
    ROW,
    STAGED,
    UNKNOWN,
    Checked,
    Damage,
    check,
    check_blocks,
    check_partition,
)
from dafka_core.storage.rows import BLOCK_KEY
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog
from tests.integration.storage.damage import change, erase, three_blocks, trees
from tests.integration.storage.processes import TP
from tests.integration.storage.staged import large, put, stage


def checked(directory: Path) -> Checked:
    done = Checked()
    with Log(directory, unchecked=True) as log:
        for each in check(log.snapshot):
            done = done.plus(each)
    return done


def kinds(found: Checked) -> list[tuple[str, int]]:
    return [(each.kind, each.offset) for each in found.found]


def test_all_of_a_log_is_read(tmp_path: Path) -> None:
    three_blocks(tmp_path)
    done = checked(tmp_path)
    assert done[:3] == (1, 300, 3)
    assert done.size_bytes > 300_000
    assert done.found == ()


def test_a_damaged_block_is_named_and_those_behind_it_are_checked(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    path = tmp_path / "data.mdb"
    path.write_bytes(path.read_bytes().replace(values[150], b"!" * 1000))
    done = checked(tmp_path)
    assert done[:3] == (1, 200, 2)
    (damage,) = done.found
    assert damage[:4] == (BLOCK, *TP, 100)
    assert "the block at offset 100 cannot be read: its checksum is not" in damage.why
    with Log(tmp_path) as log, log.snapshot() as tables:
        assert [each.kind for part in check_blocks(tables) for each in part.found] == [BLOCK]


@pytest.mark.parametrize("first", [0, 100, 200])
def test_a_missing_block_is_a_hole(tmp_path: Path, first: int) -> None:
    three_blocks(tmp_path)
    change(tmp_path, b"blocks", BLOCK_KEY.pack(0, first), None)
    done = checked(tmp_path)
    assert kinds(done) == [(HOLE, first)]
    assert done[:3] == (1, 200, 2)


def test_a_damaged_row_is_named_and_the_other_partitions_are_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100), "p")
        put(log, large(100), "q")
        with log.snapshot() as tables:
            key, value = next(tables.entries(1))
            row = bytes(value)
        # Without the open log's knowledge: none opens with such a row.
        env = log._env._opened
        assert env is not None
        with env.env.begin(write=True) as txn:
            txn.put(key, row[:8] + b"\1" + row[9:], db=env.partitions)
        done = Checked()
        for each in check(log.snapshot):
            done = done.plus(each)
    assert done.partitions == 1
    assert done.records == 100
    assert done.found == (Damage(ROW, "t", "p", 0, "its row does not match its checksum"),)


def test_what_lies_beside_records_is_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100), "p")
        assert log.write([stage(large(100), 100, partition="p")]) == [None]
        ChangingLog(log, 7).change(60)
        (aside, *_) = log.aside()
        note = next(iter(log.notes("n")))
        with log.snapshot() as tables:
            lives = next(bytes(k) for k, _ in tables.entries(0) if k.startswith(b"lives of "))
    change(tmp_path, b"meta", b"note " + note.encode(), b"another one" * 2)
    change(tmp_path, b"meta", lives, b"x" * 48)
    change(tmp_path, b"blocks", BLOCK_KEY.pack(1 << 40, 0), b"nobody's")
    change(tmp_path, b"blocks", BLOCK_KEY.pack(aside.id, aside.start), b"no block")
    found = {each.kind for each in checked(tmp_path).found}
    assert found == {NOTES, EPOCHS, UNKNOWN, ASIDE}


def test_staged_records_are_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100))
        assert log.write([stage(large(100), 100)]) == [None]
        assert log.write([stage(large(100), 200)]) == [None]
    assert checked(tmp_path).found == ()
    change(tmp_path, b"blocks", BLOCK_KEY.pack(0, 200), None)
    (damage,) = checked(tmp_path).found
    assert damage[:4] == (STAGED, "t", "p", 200)
    assert damage.why == "staged records end at 200, not at 300"
    change(tmp_path, b"blocks", BLOCK_KEY.pack(0, 100), b"no block")
    assert kinds(checked(tmp_path)) == [(STAGED, 100)]


def test_a_log_may_change_while_it_is_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        changing = ChangingLog(log, 3)
        changing.change(50)
        done = Checked()
        for each in check(log.snapshot):
            changing.change(5)
            done = done.plus(each)
        assert done.found == ()
        assert done.partitions == len(PARTITIONS)


def test_a_partition_that_is_gone_meanwhile_is_none(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(TopicPartition("t", "p"), 0, [b"a"])])
        assert list(check_partition(log.snapshot, TopicPartition("t", "q"))) == []


NAMES = [TopicPartition("t", f"p{number}") for number in range(12)]
COUNT = 400


def many(directory: Path) -> None:
    """Twelve partitions of twenty large blocks: the tree of blocks has several leaves."""
    with Log(directory) as log:
        for first in range(0, COUNT, 20):
            log.append([RecordBatch.of(tp, first, [b"." * 4000] * 20) for tp in NAMES])


def is_whole(log: Log, tp: TopicPartition) -> bool:
    with suppress(StoreError):
        return sum(batch.count for batch in log.read(tp, 0, COUNT)) == COUNT
    return False


def test_a_damaged_page_of_a_tree_is_named_for_each_partition_that_needs_it(
    tmp_path: Path,
) -> None:
    """It ended the check with an error of LMDB once."""
    many(tmp_path)
    data, several = tmp_path / "data.mdb", 0
    for at in trees(data):
        page = erase(data, at)
        with suppress(StoreError), Log(tmp_path) as log:  # LMDB may find no table at all
            done = Checked()
            for each in check(log.snapshot):
                done = done.plus(each)
            if ROW not in {each.kind for each in done.found}:
                lost = {tp for tp in NAMES if not is_whole(log, tp)}
                named = {TopicPartition(each.topic, each.partition) for each in done.found}
                assert lost == named - {TopicPartition("", "")}
                assert done.partitions == len(NAMES)
                assert done.records >= COUNT * (len(NAMES) - len(lost))
                assert (done.records < COUNT * len(NAMES)) == bool(lost) == bool(done.found)
                several += 1 < len(lost) < len(NAMES)
        erase(data, at, page)
    assert several > 1


def test_results_of_two_looks_are_added() -> None:
    one, other = (Damage(BLOCK, "t", "p", offset, "why") for offset in (1, 2))
    both = Checked(1, 2, 3, 4, (one,), 5).plus(Checked(10, 20, 30, 40, (other,), 50))
    assert both == Checked(11, 22, 33, 44, (one, other), 55)
