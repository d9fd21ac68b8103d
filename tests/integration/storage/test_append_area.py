"""The append area: small batches cause few writes, and readers don't notice it."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log, append_area
from dafka_core.storage.append_area import Group
from dafka_core.storage.environment import Environment
from tests.integration.storage.damage import change, entries, spoil
from tests.integration.storage.staged import TP, clean, held, large, put, tiny_area


def octets_written() -> int:
    """Return the bytes that this process has written; LMDB writes whole pages."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_area(monkeypatch)


def in_snapshot(store: Log) -> list[bytes]:
    """Return everything that a reader of one moment gets."""
    with store.snapshot() as snapshot:
        return held(snapshot)


def groups(directory: Path) -> dict[bytes, bytes]:
    """Return all groups, by their keys."""
    found = entries(directory, b"meta", b"group ")
    return {key: group for key, group in found.items() if group}


def test_records_that_trickle_are_written_a_few_times(tmp_path: Path) -> None:
    """A thousand partitions, one record each at a time."""
    partitions = [
        TopicPartition("t", f"{number * 2654435761 % 2**32:032X}") for number in range(1000)
    ]
    rounds, value = 60, b"." * 100
    with Log(tmp_path) as store:
        before = octets_written()
        for offset in range(rounds):
            store.append([RecordBatch.of(tp, offset, [value]) for tp in partitions])
            while store.small_blocks and store.merge_step():
                pass
        clean(store)
        written = octets_written() - before
    kept = rounds * len(partitions) * len(value)
    assert kept < written < 10 * kept
    assert (tmp_path / "data.mdb").stat().st_size < 1.9 * kept  # 1.5 with twice as many


@pytest.mark.parametrize("read", [held, in_snapshot])
def test_a_reader_looks_into_each_group_once(
    store: Log, monkeypatch: pytest.MonkeyPatch, read: Callable[[Log], list[bytes]]
) -> None:
    """Also a read of everything, which once needed one search for each block."""
    for number in range(30):
        put(store, [b"%d" % number])
    looked_into = Mock(wraps=Group)
    monkeypatch.setattr(append_area, "Group", looked_into)
    assert read(store) == [b"%d" % number for number in range(30)]
    assert looked_into.call_count == 30


@pytest.mark.usefixtures("tiny")
def test_trimmed_records_leave_the_area(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        for number in range(10):
            put(store, [b"first %d" % number])
        store.trim(TP, 10)
        for number in range(4):
            put(store, [b"later %d" % number], "q")
        statistics = store.statistics(TP)
        assert statistics is not None
        assert statistics.size_bytes == 0
        clean(store)
        put(store, [b"last"])
        assert held(store) == [b"last"]
    env = Environment(tmp_path, map_size_bytes=1 << 20)
    with contextlib.closing(env), env.reading() as tables:
        assert [block.first for block in tables.area.of_partition(0)] == [10]


@pytest.mark.parametrize("level", [0, 1])
def test_a_damaged_group_is_named_and_appends_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    monkeypatch.setattr(append_area, "APPENDED_GROUPS", 3)
    with Log(tmp_path) as store:
        for number in range(3 if level else 2):
            put(store, [b"%d" % number])
    key = next(iter(groups(tmp_path)))
    change(tmp_path, b"meta", key, b"DafG" + bytes(100))
    with Log(tmp_path) as store:
        why = (
            "topic 't', partition p: the block at offset 0 cannot be read: "
            rf"group 0 of small batches, level {level}, bucket 0, is damaged: "
        )
        with pytest.raises(StoreError, match=why):
            held(store)
        with pytest.raises(StoreError, match=why):
            store.statistics(TP)
        for number in range(12):
            put(store, [b"%d" % number], "q")
            clean(store)
            assert held(store, "q") == [b"%d" % each for each in range(number + 1)]
        assert store.trim(TP, 1) == 1
    assert key in groups(tmp_path)


def test_a_damaged_group_harms_no_partition_outside_of_it(tmp_path: Path) -> None:
    """The store reported all of its partitions as damaged, and read them again and again."""
    other = TP._replace(partition="q")
    with Log(tmp_path) as store:
        put(store, [b"lost"])
        put(store, [b"whole"], "q")
        before = store.statistics(other)
    change(tmp_path, b"meta", next(iter(groups(tmp_path))), b"DafG" + bytes(100))
    with Log(tmp_path) as store:
        assert store.statistics(other) == before
        with store.snapshot() as snapshot:
            blocks = snapshot.blocks(other)
            assert blocks is not None
            assert [(each.first, each.end) for each in blocks] == [(0, 1)]
        assert store.healer.damaged == set()


def test_records_before_a_damaged_group_are_read(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, large(100))
        put(store, [b"small"])
    change(tmp_path, b"meta", next(iter(groups(tmp_path))), b"DafG" + bytes(100))
    with Log(tmp_path) as store:
        assert [*store.read(TP, 0, 100)[0].values] == large(100)
        assert store.healer.damaged == set()
        with pytest.raises(StoreError, match="the block at offset 100 cannot be read: group 0 of"):
            store.read(TP, 0, 101)
        assert store.healer.damaged == {TP}


def test_blocks_of_another_group_are_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they were merged since."""
    with Log(tmp_path) as store:
        for value in (b"first", b"other"):
            put(store, [value * 500])
    (ours, first), (_, other) = groups(tmp_path).items()
    at = first.index(b"DafB")
    change(tmp_path, b"meta", ours, first[:at] + other[at:])
    tiny_area(monkeypatch)
    with Log(tmp_path) as store:
        for number in range(12):
            with pytest.raises(StoreError, match="partition p: the block at offset 0 cannot be re"):
                store.read(TP, 0, 1)
            assert [batch.values[0] for batch in store.read(TP, 1, 2)] == [b"other" * 500]
            put(store, [b"%d" % number], "q")
            clean(store)


@pytest.mark.usefixtures("tiny")
def test_a_damaged_note_of_a_trim_costs_no_record(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        for number in range(2):
            put(store, [b"%d" % number])
        store.trim(TP, 1)
    change(tmp_path, b"meta", b"trim of " + bytes(8), (100).to_bytes(8, "big"))
    with Log(tmp_path) as store:
        for number in range(2, 12):
            put(store, [b"%d" % number])
            clean(store)
        assert held(store) == [b"%d" % number for number in range(1, 12)]


@pytest.mark.usefixtures("tiny")
def test_a_batch_before_a_large_one_leaves_the_area_when_groups_are_sorted(store: Log) -> None:
    """It cannot grow there, and would keep the blocks on both sides from being merged."""
    put(store, [b"small"])
    put(store, large(100))
    for number in range(4):
        put(store, [b"other %d" % number], "q")
    with store.snapshot() as tables:
        row = tables.row(TP)
        assert row is not None
        assert (tables.area.of_partition(row.id), [*tables.firsts(row.id, 0)]) == ([], [0, 1])


def test_a_trimmed_block_that_the_area_follows_is_deleted(store: Log) -> None:
    put(store, large(20))
    put(store, [b"small"])
    assert store.trim(TP, 20) == 20
    statistics = store.statistics(TP)
    assert statistics is not None
    assert statistics.size_bytes < 100
    assert held(store) == [b"small"]


@pytest.mark.parametrize("records", [[b"small"], large(100)], ids=["in the area", "in a block"])
def test_an_id_in_use_is_found(tmp_path: Path, records: list[bytes]) -> None:
    """Otherwise a new partition would overwrite the records of the id's owner."""
    with Log(tmp_path) as store:
        put(store, records)
    change(tmp_path, b"meta", b"next partition", None)
    with Log(tmp_path) as store:
        with pytest.raises(StoreError, match="the id of the next partition, 0, is in use"):
            put(store, [b"other"], "q")
        assert held(store) == records
        assert store.info(TP._replace(partition="q")) is None


@pytest.mark.usefixtures("tiny")
def test_what_has_piled_up_is_merged_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_area, "APPENDED_GROUPS", 1)
    with Log(tmp_path) as store:
        for number in range(11):
            put(store, [b"%d" % number])
        store.merge_step()
    assert [key[len(b"group ")] for key in groups(tmp_path)] == [1] * 7 + [2]
    with Log(tmp_path) as store:
        put(store, [b"11"])
        clean(store)
        assert held(store) == [b"%d" % number for number in range(12)]
    assert [key[len(b"group ")] for key in groups(tmp_path)].count(1) < 2


def test_a_damaged_block_of_a_group_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_area, "APPENDED_GROUPS", 3)
    with Log(tmp_path) as store:
        put(store, [b"first" * 500])
        put(store, [b"other" * 500], "q")
    spoil(tmp_path / "data.mdb", b"first" * 500)
    with Log(tmp_path) as store:
        for number in range(5):
            put(store, [b"%d" % number])
            put(store, [b"%d" % number], "q")
            clean(store)
        assert held(store, "q") == [b"other" * 500, *(b"%d" % number for number in range(5))]
        with pytest.raises(StoreError, match="partition p: the block at offset 0 cannot be read"):
            held(store)
        assert store.read(TP, 1, 9)[0].offset == 1


READ_ALL = """
import contextlib, sys
from dafka_core.errors import StoreError
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log
with Log(sys.argv[1]) as log:
    for offset in range(30):
        with contextlib.suppress(StoreError):
            (batch,) = log.read(TopicPartition("t", "p"), offset, offset + 1)
            assert batch.values[0] == b"%d" % offset * 500
            print(offset, end=" ")
"""


def test_a_lost_page_of_keys_does_not_end_the_process(tmp_path: Path) -> None:
    """LMDB aborts when the key after the last one before such a page is requested."""
    with Log(tmp_path / "whole") as store:
        for number in range(30):
            put(store, [b"%d" % number * 500])
    data = (tmp_path / "whole" / "data.mdb").read_bytes()
    pages = [at for at in range(0, len(data), 4096) if data.count(b"group ", at, at + 4096) > 1]
    lost = set()
    for page in pages[-4:]:
        shutil.rmtree(tmp_path / "lost", ignore_errors=True)
        directory = shutil.copytree(tmp_path / "whole", tmp_path / "lost")
        (directory / "data.mdb").write_bytes(data[:page] + bytes(4096) + data[page + 4096 :])
        read = subprocess.run(
            [sys.executable, "-c", READ_ALL, directory], capture_output=True, text=True, check=False
        )
        assert (read.returncode, read.stderr) == (0, "")
        lost.add(30 - len(read.stdout.split()))
    assert max(lost) > 0
