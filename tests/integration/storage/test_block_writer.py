"""An append's blocks: as large as they may be, the last one extended while it is small."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import Log, block
from dafka_core.storage.environment import Environment
from tests.integration.storage.damage import change, entries, spoil
from tests.integration.storage.staged import TP, Clock, held, large, put


def test_a_small_last_block_is_extended(store: Log, clock: Clock) -> None:
    put(store, large(20))
    clock.now_us += 1
    put(store, large(100))
    put(store, large(30))
    shared, last = store.read(TP, 0, 200)
    assert shared.values.to_list() == large(20) + large(100)
    assert shared.times is not None
    assert (
        np.repeat(shared.times[:, 1], shared.times[:, 0]).tolist() == [1_000] * 20 + [1_001] * 100
    )
    assert last.values.to_list() == large(30)


def test_a_block_that_has_grown_since_it_was_cached_is_read_again(store: Log) -> None:
    for count in (1, 2):
        put(store, large(20))
        assert held(store) == large(20) * count


def test_small_batches_go_to_the_append_area(store: Log) -> None:
    put(store, large(20))
    put(store, [b"small"])
    put(store, large(20))  # does not follow the first block
    assert [batch.count for batch in store.read(TP, 0, 99)] == [20, 1, 20]
    store.close()
    env = Environment(store.directory, map_size_bytes=1 << 20)
    with contextlib.closing(env), env.reading() as tables:
        assert [(block.first, block.end) for block in tables.area.of_partition(0)] == [(20, 21)]
        assert [each.first for each in tables.blocks_from(0, 0, 41)] == [0, 21]


def test_blocks_have_the_size_of_a_batch(tmp_path: Path) -> None:
    def appended(store: Log, topic: str, count: int, length: int) -> list[int]:
        ends = np.arange(count + 1) * length
        values = Values.from_columns(ends, bytes(count * length))
        tp = TopicPartition(topic, "p")
        store.append([RecordBatch(tp, 0, values)])
        with store.snapshot() as snapshot:
            return [batch.count for batch in snapshot.read(tp, 0, count)]

    with Log(tmp_path) as store:
        assert appended(store, "a", 65_536, 100) == [65_536]
        assert appended(store, "b", 65_537, 1) == [32_769, 32_768]
        assert appended(store, "c", 16_384, 1_000) == [16_384]
        assert appended(store, "d", 40_000, 1_000) == [13_334, 13_333, 13_333]
        assert appended(store, "e", 2, 10_000_000) == [1, 1]


def test_a_record_too_large_is_refused(store: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "MAX_RECORD_BYTES", 10)
    with pytest.raises(ValueError, match="value 1 has 11 bytes"):
        put(store, [b"x", b"y" * 11])
    assert store.end(TP) == 0


def test_a_damaged_last_block_is_not_extended(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 0, [b"a" * 20_000])])
    spoil(tmp_path / "data.mdb", b"a" * 20_000)
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 1, [b"b" * 20_000])])
        assert store.healer.damaged == {TP}
        (after,) = store.read(TP, 1, 2)
        assert list(after.values) == [b"b" * 20_000]
        with pytest.raises(StoreError, match="the block at offset 0 cannot be read"):
            store.read(TP, 0, 2)


def test_a_last_block_that_ends_elsewhere_is_found(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        store.append(
            [
                RecordBatch.of(TopicPartition("t", "1"), 0, [b"a" * 20_000]),
                RecordBatch.of(TopicPartition("t", "2"), 0, [b"a" * 20_000, b"b"]),
            ]
        )
    other = entries(tmp_path, b"blocks")[bytes(16)]
    change(tmp_path, b"blocks", bytes(7) + b"\1" + bytes(8), other)
    with Log(tmp_path) as store, pytest.raises(StoreError, match="ends at offset 1, not at 2"):
        store.append([RecordBatch.of(TopicPartition("t", "2"), 2, [b"c" * 20_000])])
