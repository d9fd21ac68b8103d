"""Damaged records are replaced, at the same offsets, and everything reads them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dafka_core.errors import StoreError
from dafka_core.model.epochs import Epoch
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.storage.log_check import Damage, check
from tests.integration.storage.damage import change
from tests.integration.storage.processes import TP

EPOCH = Epoch(1, 7, 0, 0, 0)
LARGE = 3
"""Batches of 100 kB, each in a block of the table; as many small ones follow, in groups."""

COUNT = 100
END = 2 * LARGE * COUNT
AT_HEADER, AT_COUNT, AT_CONTENT = 0, 16, 4_000


def batch(number: int) -> RecordBatch:
    size, first = (1_000 if number < LARGE else 10), number * COUNT
    values = [(b"%d " % each).ljust(size, b".") for each in range(first, first + COUNT)]
    times = np.array([[1, 1_000 * each] for each in range(first, first + COUNT)])
    return RecordBatch(TP, first, Values.of(values), times=times, epoch=EPOCH)


def merge(log: Log) -> None:
    while log.merge_step():
        pass


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
        ((_, _, (place, *_)),), lease = self.damaged.lease(
            [(TP, start, start + 1)], max_blocks=1, max_bytes=1
        )
        assert lease is not None
        self.damaged.end_lease(lease.id)
        with (self._directory / "damaged" / "data.mdb").open("r+b") as file:
            file.seek(place.position + at)
            before = file.read(size)
            file.seek(place.position + at)
            file.write(bytes(each ^ 4 for each in before))

    def heal(self) -> list[tuple[int, int]]:
        """Return the ranges that were replaced."""
        healed = []
        for each in self.damaged.healer.damaged_ranges(TP):
            if each is not None:
                for part in self.good.read(TP, each.start, each.end):
                    assert self.damaged.healer.replace(each, part)
                healed.append(each[1:3])
        return healed

    def found(self) -> list[Damage]:
        return [each for part in check(self.damaged.snapshot) for each in part.found]

    def assert_equal(self, earliest: int = 0, end: int = END) -> None:
        read = [log.read(TP, earliest, end) for log in (self.damaged, self.good)]
        ours, theirs = ([value for each in some for value in each.values] for some in read)
        assert ours == theirs
        assert len(ours) == end - earliest
        times = [log.times(TP, earliest, end) for log in (self.damaged, self.good)]
        assert times[0] == times[1]
        for offset in range(earliest, end, 50):
            assert self.damaged.offset_for_time(TP, 1_000 * offset - 1) == offset

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
    merge(logs.damaged)
    logs.assert_equal()


def test_small_batches_are_replaced_and_no_merge_brings_them_back(logs: TwoLogs) -> None:
    start = LARGE * COUNT
    logs.flip(start, AT_CONTENT // 10)
    assert logs.heal() == [(start, start + COUNT)]
    logs.assert_equal()
    end = END
    for number in range(2 * LARGE, 50):
        for log in (logs.damaged, logs.good):
            log.append([batch(number)])
        end += COUNT
    merge(logs.damaged)
    logs.assert_equal(end=end)
    assert logs.found() == []


def test_all_damage_of_a_partition_is_replaced_at_once(logs: TwoLogs) -> None:
    for number in range(2 * LARGE):
        logs.flip(number * COUNT, AT_CONTENT if number < LARGE else AT_CONTENT // 10)
    assert [start for start, _ in logs.heal()] == list(range(0, END, COUNT))
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


def test_a_trimmed_range_stays(logs: TwoLogs) -> None:
    logs.flip(0, AT_CONTENT)
    (damaged,) = filter(None, logs.damaged.healer.damaged_ranges(TP))
    logs.damaged.trim(TP, COUNT)
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


def test_a_merge_reports_a_damaged_header(logs: TwoLogs) -> None:
    logs.flip(COUNT, AT_HEADER)
    with pytest.raises(StoreError, match=f"the block at offset {COUNT} cannot be read"):
        merge(logs.damaged)
    merge(logs.damaged)
