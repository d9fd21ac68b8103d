"""Damage, found by the tables, that was once served, or ended a store without a sentence."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log

P, Q = TopicPartition("t", "P" * 32), TopicPartition("t", "Q" * 32)
EACH = 100


def filled(directory: Path) -> list[bytes]:
    """Three blocks, each too large to be extended, in one partition: offsets 0, 100 and 200."""
    values = [b"%d".ljust(1000, b".") % number for number in range(3 * EACH)]
    with Log(directory) as log:
        for first in range(0, len(values), EACH):
            log.append([RecordBatch.of(P, first, values[first : first + EACH])])
    return values


def changed(directory: Path, table: bytes, key: bytes, other: bytes | None) -> None:
    """Replace or remove the value of a key."""
    with lmdb.open(str(directory), max_dbs=3, map_size=1 << 30) as env:
        found = env.open_db(table, create=False)
        with env.begin(write=True) as transaction:
            content = transaction.pop(key, db=found)
            assert content is not None
            if other is not None:
                transaction.put(other, content, db=found)


def block_key(partition_id: int, first: int) -> bytes:
    return partition_id.to_bytes(8, "big") + first.to_bytes(8, "big")


def read(log: Log, start: int) -> list[bytes]:
    return [value for batch in log.read(P, start, 3 * EACH) for value in batch.values]


def read_at_once(log: Log, start: int) -> list[bytes]:
    with log.snapshot() as snapshot:
        return [value for batch in snapshot.read(P, start, 3 * EACH) for value in batch.values]


@pytest.mark.parametrize("way", [read, read_at_once])
@pytest.mark.parametrize("moved_to", [90, 101, 110])
def test_a_block_under_another_key_is_refused(tmp_path: Path, way: object, moved_to: int) -> None:
    """It was served once: its checksum covers its content, not its place."""
    assert callable(way)
    values = filled(tmp_path)
    changed(tmp_path, b"blocks", block_key(0, 100), block_key(0, moved_to))
    with Log(tmp_path) as log:
        for start in (0, 95, 120, 180):
            with pytest.raises(StoreError, match="cannot be read"):
                way(log, start)
        assert way(log, 2 * EACH) == values[2 * EACH :]


@pytest.mark.parametrize("way", [read, read_at_once])
def test_a_key_of_another_length_is_told(tmp_path: Path, way: object) -> None:
    assert callable(way)
    filled(tmp_path)
    changed(tmp_path, b"blocks", block_key(0, 100), block_key(0, 100)[:-3])
    with Log(tmp_path) as log, pytest.raises(StoreError, match="cannot be read"):
        way(log, 0)


def test_a_new_partition_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    """It overwrote the first records of the owner of its number once."""
    values = filled(tmp_path)
    changed(tmp_path, b"meta", b"next partition", None)
    with Log(tmp_path) as store:
        with pytest.raises(StoreError, match="in use"):
            store.append([RecordBatch.of(Q, 0, [b"other"] * EACH)])
        assert read(store, 0) == values
        assert store.info(Q) is None
