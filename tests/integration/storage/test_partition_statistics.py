"""Times and sizes are found by a search and a sum, without reading the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log, PartitionStatistics, block_writer, snapshot
from dafka_core.storage.block import peek_times
from tests.integration.storage.clocks import Clock
from tests.integration.storage.processes import TP, P


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Each append makes a block, 10 microseconds later than the previous one."""
    monkeypatch.setattr(block_writer, "SMALL_BLOCK_BYTES", 1)
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
    for block in range(blocks):
        store.append([RecordBatch.of(TP, 3 * block, [b"%05d" % block] * 3)])


def test_a_time_is_found_by_a_search(store: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 500)
    looked_at = 0
    peek = peek_times

    def counted(packed: memoryview) -> object:
        nonlocal looked_at
        looked_at += 1
        return peek(packed)

    monkeypatch.setattr(snapshot, "peek_times", counted)
    for time_us, offset in ((10_000, 0), (10_001, 3), (12_000, 600), (14_990, 1497), (0, 0)):
        looked_at = 0
        assert store.offset_for_time(TP, time_us) == offset
        assert 0 < looked_at <= 11  # 1500 records, halved each time
    looked_at = 0
    assert store.offset_for_time(TP, 14_991) is None
    assert looked_at == 0
    # Merged, fewer rows are read, and the answers are equal.
    while store.merge_step():
        pass
    for time_us, offset in ((10_000, 0), (10_001, 3), (12_000, 600), (14_990, 1497), (0, 0)):
        looked_at = 0
        assert store.offset_for_time(TP, time_us) == offset
        assert looked_at < 10


def test_damage_where_a_time_is_looked_up_is_found(tmp_path: Path) -> None:
    values = [b"<%05d>" % number * 3000 for number in range(30)]
    with Log(tmp_path) as store:
        for offset in range(0, 30, 10):
            store.append([RecordBatch.of(TP, offset, values[offset : offset + 10])])
        times = store.times(TP, 0, 30)
    data = (tmp_path / "data.mdb").read_bytes()
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.seek(data.index(values[12]) + 100)
        file.write(b"!")
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


def test_statistics(store: Log) -> None:
    assert store.statistics(TP) is None
    store.append(
        [
            RecordBatch.of(TopicPartition("s", P), 0, [b"x" * 100_000]),
            RecordBatch.of(TopicPartition("u", P), 0, [b"y" * 100_000]),
        ]
    )
    fill(store, 100)
    found = store.statistics(TP)
    assert found is not None
    size_bytes = found.size_bytes
    assert 100 * 15 < size_bytes < 100 * 100
    assert found == PartitionStatistics("t", P, 0, 300, 300, size_bytes, 10_010, 11_000)
    store.trim(TP, 31)
    found = store.statistics(TP)
    assert found == PartitionStatistics("t", P, 31, 300, 269, size_bytes * 9 // 10, 10_110, 11_000)
    while store.merge_step():
        pass
    found = store.statistics(TP)
    assert found is not None
    assert 90 * 15 < found.size_bytes < size_bytes * 2 / 3
    assert found[:5] + found[6:] == ("t", P, 31, 300, 269, 10_110, 11_000, "")
    store.trim(TP, 300)
    assert store.statistics(TP) == PartitionStatistics("t", P, 300, 300, 0, 0, None, None)
    others = [store.statistics(TopicPartition(topic, P)) for topic in ("s", "u")]
    assert all(other is not None and other.size_bytes > 100_000 for other in others)
