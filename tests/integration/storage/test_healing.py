"""Damaged records are replaced, at the same offsets, and everything reads them again."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dafka_core.errors import StoreError
from dafka_core.model.epochs import Epoch
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition, concat
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.storage.log_check import Damage
from tests.integration.storage.damage import change
from tests.integration.storage.linked import checked
from tests.integration.storage.processes import TP, values_of
from tests.integration.storage.staged import clean, tiny_area
from tests.integration.storage.test_block_compressor import codecs, compress

EPOCH = Epoch(1, 7, 0, 0, 0)
LARGE = 3
"""Batches of 100 kB, each in a block of the table; as many small ones follow, in groups."""

COUNT = 100
END = 2 * LARGE * COUNT
AT_HEADER, AT_COUNT, AT_CONTENT = 0, 16, 4_000


def batch(number: int) -> RecordBatch:
    return batch_of(TP, number * COUNT, 1_000 if number < LARGE else 10)


def small(tp: TopicPartition, first: int) -> RecordBatch:
    return batch_of(tp, first, 10)


def batch_of(tp: TopicPartition, first: int, size: int, count: int = COUNT) -> RecordBatch:
    values = [(b"%d " % each).ljust(size, b".") for each in range(first, first + count)]
    late_us = 150_000 if COUNT <= first < 2 * COUNT else 0
    times = np.array([[1, 1_000 * each - late_us] for each in range(first, first + count)])
    return RecordBatch(tp, first, Values.of(values), times=times, epoch=EPOCH)


class TwoLogs:
    """Equal logs: bits of ``damaged`` flip, and ``good`` has the records."""

    def __init__(self, directory: Path) -> None:
        self._open = ExitStack()
        self._directory = directory
        self.damaged, self.good = (
            self._open.enter_context(Log(directory / name)) for name in ("damaged", "good")
        )
        for number in range(2 * LARGE):
            self.damaged.append([batch(number)])
            self.good.append([batch(number)])

    def flip(self, start: int, at: int, size: int = 1) -> None:
        """Flip a bit of some bytes of the block with an offset, relative to its position."""
        ((_, _, ((_, position, _), *_)),), lease = self.damaged.lease(
            [(TP, start, start + 1)], max_blocks=1, max_bytes=1
        )
        assert lease is not None
        self.damaged.end_lease(lease.id)
        with (self._directory / "damaged" / "data.mdb").open("r+b") as file:
            file.seek(position + at)
            before = file.read(size)
            file.seek(position + at)
            file.write(bytes(each ^ 4 for each in before))

    def heal(self, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """Return the ranges that were replaced."""
        healed = []
        for each in self.damaged.healer.damaged_ranges(tp):
            if each is not None:
                for part in self.good.read(tp, each.start, each.end):
                    assert self.damaged.healer.replace(each, part)
                healed.append(each[1:3])
        return healed

    def found(self) -> list[Damage]:
        return [*checked(self.damaged).found]

    def assert_equal(self, earliest: int = 0, end: int = END) -> None:
        read = [log.read(TP, earliest, end) for log in (self.damaged, self.good)]
        ours, theirs = ([value for each in some for value in each.values] for some in read)
        assert ours == theirs
        assert len(ours) == end - earliest
        times = [log.times(TP, earliest, end) for log in (self.damaged, self.good)]
        assert times[0] == times[1]
        for time_us in range(-100_000, 1_000 * end, 10_000):
            found = [log.offset_for_time(TP, time_us) for log in (self.damaged, self.good)]
            assert found[0] == found[1]
        with self.damaged.snapshot() as snapshot:
            blocks = snapshot.blocks(TP)
            assert blocks is not None
            assert all(blocks[number].end > earliest for number in range(len(blocks)))

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[TwoLogs]:
    logs = TwoLogs(tmp_path)
    yield logs
    logs.close()


@pytest.mark.parametrize("at", [AT_HEADER, AT_COUNT, AT_CONTENT])
@pytest.mark.parametrize("block", range(LARGE))
def test_a_block_is_replaced(logs: TwoLogs, block: int, at: int) -> None:
    start = block * COUNT
    logs.flip(start, at)
    with pytest.raises(StoreError, match="cannot be read"):
        logs.damaged.read(TP, start, start + 1)
    assert logs.damaged.healer.damaged == {TP}
    assert logs.heal() == [(start, start + COUNT)]
    logs.assert_equal()
    assert logs.found() == []
    clean(logs.damaged)
    logs.assert_equal()


def test_small_batches_are_replaced_and_no_merge_brings_them_back(
    logs: TwoLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_area(monkeypatch)
    start = LARGE * COUNT
    logs.flip(start, AT_CONTENT // 10)
    assert logs.heal() == [(start, start + COUNT)]
    logs.assert_equal()
    end = END + 50
    for offset in range(END, end):
        for log in (logs.damaged, logs.good):
            log.append([batch_of(TP, offset, 10, 1)])
    clean(logs.damaged)
    logs.assert_equal(end=end)
    assert logs.found() == []


@pytest.mark.parametrize("at", [-40, AT_HEADER])
def test_a_damaged_group_is_removed_when_all_its_records_are_elsewhere(
    logs: TwoLogs, at: int
) -> None:
    """Before the only block is the directory of its group."""
    other = TopicPartition("t", "other")
    for log in (logs.damaged, logs.good):
        log.append([small(other, 0), small(TP, END)])
    logs.flip(END, at)
    with pytest.raises(StoreError, match="cannot be read"):
        logs.damaged.read(TP, END, END + 1)
    assert logs.heal() == [(END, END + COUNT)]
    assert values_of(logs.damaged, TP) == values_of(logs.good, TP)
    logs.damaged.healer.damaged.clear()
    logs.damaged.healer.rewrite_groups(TP)
    if at == AT_HEADER:
        assert not logs.damaged.healer.damaged
    else:
        assert logs.damaged.healer.damaged == {other}
        assert logs.heal(other) == [(0, COUNT)]
        logs.damaged.healer.rewrite_groups(other)
    for tp in (TP, other):
        assert logs.damaged.statistics(tp) is not None
    assert values_of(logs.damaged, other) == values_of(logs.good, other)
    logs.assert_equal(end=END + COUNT)
    assert logs.found() == []


def test_all_damage_of_a_partition_is_replaced_at_once(logs: TwoLogs) -> None:
    for number in range(2 * LARGE):
        logs.flip(number * COUNT, AT_CONTENT if number < LARGE else AT_CONTENT // 10)
    assert [start for start, _ in logs.heal()] == list(range(0, END, COUNT))
    logs.assert_equal()


def test_a_block_is_replaced_while_the_one_before_it_is_damaged(logs: TwoLogs) -> None:
    """Other stores have that one later; searches by time find the right records then."""
    for start in (0, COUNT):
        logs.flip(start, AT_HEADER)
    for each in reversed([*filter(None, logs.damaged.healer.damaged_ranges(TP))]):
        for part in logs.good.read(TP, each.start, each.end):
            assert logs.damaged.healer.replace(each, part)
    logs.assert_equal()
    clean(logs.damaged)
    logs.assert_equal()


def test_missing_records_are_added(logs: TwoLogs, tmp_path: Path) -> None:
    logs.damaged.close()
    change(tmp_path / "damaged", b"blocks", bytes(15) + bytes([COUNT]), None)
    logs.damaged = Log(tmp_path / "damaged")
    assert logs.heal() == [(COUNT, 2 * COUNT)]
    logs.assert_equal()
    logs.damaged.close()


def test_only_the_untrimmed_records_are_replaced(logs: TwoLogs) -> None:
    for log in (logs.damaged, logs.good):
        log.trim(TP, COUNT + 50)
    logs.flip(COUNT + 50, AT_CONTENT)
    assert logs.heal() == [(COUNT + 50, 2 * COUNT)]
    logs.assert_equal(COUNT + 50)
    assert logs.found() == []


def test_a_range_of_another_history_stays(logs: TwoLogs) -> None:
    logs.flip(0, AT_CONTENT)
    (damaged,) = filter(None, logs.damaged.healer.damaged_ranges(TP))
    logs.flip(0, AT_CONTENT)
    logs.damaged.write([SetAside(TP, 0)])
    logs.damaged.append([replace(batch(0), epoch=Epoch(2, 8, 0, 0, 0))])
    assert not logs.damaged.healer.replace(damaged, batch(0))


def test_no_good_block_behind_the_range_is_replaced(logs: TwoLogs) -> None:
    logs.flip(0, AT_CONTENT)
    (damaged,) = filter(None, logs.damaged.healer.damaged_ranges(TP))
    assert not logs.damaged.healer.replace(damaged, concat([batch(0), batch(1)]))


def test_what_replaces_a_compressed_block_is_compressed(logs: TwoLogs) -> None:
    for _ in range(2):
        compress(logs.damaged)
        assert codecs(logs.damaged) == [1] * LARGE
        logs.flip(COUNT, AT_COUNT)
        assert logs.heal() == [(COUNT, 2 * COUNT)]
    logs.assert_equal()


def test_a_trimmed_range_stays(logs: TwoLogs) -> None:
    logs.flip(0, AT_CONTENT)
    (damaged,) = filter(None, logs.damaged.healer.damaged_ranges(TP))
    for log in (logs.damaged, logs.good):
        log.trim(TP, COUNT)
    assert not logs.damaged.healer.replace(damaged, batch(0))
    logs.assert_equal(COUNT)


def test_a_damaged_page_header_frees_no_page_of_others(logs: TwoLogs) -> None:
    """LMDB frees as many pages as the header of the first one says."""
    logs.flip(COUNT, AT_CONTENT)
    logs.flip(COUNT, -4, 2)
    (damaged,) = filter(None, logs.damaged.healer.damaged_ranges(TP))
    with pytest.raises(StoreError, match="its page in the file is damaged, too"):
        logs.damaged.healer.replace(damaged, batch(1))
    logs.assert_equal(end=COUNT)


def test_a_merge_reports_a_damaged_header_and_continues_when_it_is_replaced(logs: TwoLogs) -> None:
    for number in range(20):
        for log in (logs.damaged, logs.good):
            log.append([batch_of(TP, END + number * COUNT, 1_000)])
    logs.flip(COUNT, AT_HEADER)
    with pytest.raises(StoreError, match=f"the block at offset {COUNT} cannot be read"):
        clean(logs.damaged)
    clean(logs.damaged)
    logs.heal()
    clean(logs.damaged)
    logs.assert_equal(end=END + 20 * COUNT)
    with logs.damaged.snapshot() as snapshot:
        assert COUNT not in snapshot.firsts(0, 0)
