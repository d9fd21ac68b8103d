"""Snapshots: one moment of the log, of which copies are handed out."""

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.rows import TREE_BYTES, Table
from tests.integration.storage import appender
from tests.integration.storage.damage import spoil
from tests.integration.storage.processes import TP, P, check_batches, put


def values(start: int, end: int) -> list[bytes]:
    return [appender.value(offset) for offset in range(start, end)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "store") as opened:
        yield opened


def test_ranges_begin_and_end_inside_blocks(store: Log) -> None:
    for _ in range(4):
        put(store, 3000)
    with store.snapshot() as snapshot:
        firsts = [batch.offset for batch in snapshot.read(TP, 0, 12_000)]
        assert len(firsts) > 2
        edges = sorted({offset + step for offset in firsts for step in (0, 1, 500)})
        for start in edges:
            for end in (start, start + 1, *edges):
                check_batches(snapshot.read(TP, start, end), start, max(start, end))


def test_what_was_handed_out_outlives_the_log(store: Log) -> None:
    put(store, 5000)
    small = TopicPartition("small", P)
    store.append([RecordBatch.of(small, 0, [b"x"])])
    with store.snapshot() as snapshot:
        batches = [*snapshot.read(TP, 100, 4000), *snapshot.read(small, 0, 1)]
    for _ in range(30):  # the pages that it was copied from are used again
        put(store, 5000)
        store.trim(TP, store.end(TP) - 10)
    store.close()
    assert [value for each in batches for value in each.values] == [*values(100, 4000), b"x"]


def test_small_blocks_are_aligned_too(store: Log) -> None:
    partitions = {length: TopicPartition(f"{length}", P) for length in range(1, 40)}
    for length, tp in partitions.items():
        store.append([RecordBatch.of(tp, 0, [b"x" * length, b"y"])])
    with store.snapshot() as snapshot:
        for length, tp in partitions.items():
            (batch,) = snapshot.read(tp, 0, 2)
            array = batch.values.to_arrow()
            assert array.to_pylist() == [b"x" * length, b"y"]
            assert all(buffer.address % 8 == 0 for buffer in array.buffers()[1:])


def test_damage_is_found_when_it_is_reached(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, 5000)
        put(store, 5000)
    spoil(tmp_path / "data.mdb", appender.value(7000))
    with Log(tmp_path) as store, store.snapshot() as snapshot:
        batches = snapshot.read(TP, 10, 10_000)
        check_batches([next(batches)], 10, 5000)
        with pytest.raises(StoreError, match=f"partition {P}: the block at offset 5000 .*checksum"):
            next(batches)


@pytest.mark.parametrize(
    ("count", "size_bytes"), [(1, 1), (1_000, 100), (300, 5_000), (3, 1 << 20)]
)
def test_no_less_is_counted_than_is_written(tmp_path: Path, count: int, size_bytes: int) -> None:
    with lmdb.Environment(str(tmp_path), map_size=1 << 30, max_dbs=1) as env:
        table = env.open_db(b"table")
        before = env.info()["last_pgno"]
        with env.begin(write=True, buffers=True) as txn:
            counted = Table(txn, table, tmp_path)
            for number in range(count):
                counted.put(b"%d" % number, bytes(size_bytes))
        grown_bytes = (env.info()["last_pgno"] - before) * env.stat()["psize"]
        assert count * size_bytes <= grown_bytes <= TREE_BYTES + counted.written_bytes
