"""A partition's blocks, as retention sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.log_entries import Stage
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log, entry_writer
from dafka_core.storage.snapshot import HeldBlock
from tests.integration.storage.clocks import Clock
from tests.integration.storage.damage import change

TP = TopicPartition("t", "A" * 32)


def put(log: Log, count: int, size_bytes: int = 1_000) -> None:
    log.append([RecordBatch.of(TP, log.end(TP), [b"x" * size_bytes] * count)])


def blocks(log: Log) -> list[HeldBlock]:
    with log.snapshot() as snapshot:
        found = snapshot.blocks(TP)
        assert found is not None
        return [found[number] for number in range(len(found))]


def test_blocks_of_the_table_and_of_the_append_area_follow_each_other(
    store: Log, clock: Clock
) -> None:
    with store.snapshot() as snapshot:
        assert snapshot.blocks(TP) is None
    put(store, 100)
    clock.now_us = 2_000
    put(store, 3, 10)
    store.write([Stage(RecordBatch.of(TP, 103, [b"staged"]), "A" * 32)])
    first, second = blocks(store)
    assert first[:2] == (0, 100)
    assert first.size_bytes > 100_000
    assert first.newest_us == 1_000
    assert second[:2] == (100, 103)
    assert 30 < second.size_bytes < 300
    assert second.newest_us == 2_000
    store.trim(TP, 50)
    assert blocks(store) == [first, second]
    store.trim(TP, 100)
    assert blocks(store) == [second]
    store.trim(TP, 103)
    assert blocks(store) == []


def test_a_damaged_block_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    with Log(tmp_path) as log:
        put(log, 10)
    change(tmp_path, b"blocks", bytes(16), b"no block")
    with Log(tmp_path) as log, pytest.raises(StoreError, match="block at offset 0"):
        blocks(log)


A, B = TopicPartition("t", "A" * 32), TopicPartition("t", "B" * 32)


def test_several_partitions_are_trimmed_in_one_step(store: Log) -> None:
    store.append([RecordBatch.of(tp, 0, [b"x"] * 10) for tp in (A, B)])
    infos = {info.tp: info for info in store.partitions()}
    before = store.changes.number
    assert store.trim_each([(infos[A], 5), (infos[B], 10)]) == [5, 10]
    assert store.changes.number <= before + 2
    assert store.partitions() == [PartitionInfo(*A, 5, 10), PartitionInfo(*B, 10, 10)]
