"""Snapshots: one moment of the log, read in place, valid as long as it is used."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.errors import ClosedError, StoreError
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log, environment
from dafka_core.values import Values
from tests.integration.storage import appender
from tests.integration.storage.processes import (
    TP,
    P,
    check_batches,
    check_snapshot,
    child,
    put,
    started,
    told,
)


def values(start: int, end: int) -> list[bytes]:
    return [appender.value(offset) for offset in range(start, end)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "store") as opened:
        yield opened


def mapped_bytes(file: Path) -> int:
    """The address space that this process has mapped a file to."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(f" {file}")]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def test_a_snapshot_does_not_see_what_comes_later(store: Log) -> None:
    put(store, 3000)
    with store.snapshot() as snapshot:
        put(store, 3000)
        put(store, 10, topic="u")
        store.trim(TP, 5000)
        assert snapshot.info(TP) == PartitionInfo("t", P, 0, 3000)
        assert snapshot.partitions() == [PartitionInfo("t", P, 0, 3000)]
        assert snapshot.partitions("u") == []
        other = TopicPartition("u", P)
        assert snapshot.info(other) is None
        assert list(snapshot.read(other, 0, 10)) == []
        check_batches(snapshot.read(TP, -5, 9999), 0, 3000)
    with store.snapshot() as snapshot:
        check_batches(snapshot.read(TP, 0, 9999), 5000, 6000)
        assert [info.topic for info in snapshot.partitions()] == ["t", "u"]
        assert [info.topic for info in snapshot.partitions("u")] == ["u"]


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


def test_nothing_is_copied(store: Log) -> None:
    put(store, 5000)
    with store.snapshot() as snapshot:
        (batch,) = snapshot.read(TP, 100, 4000)
    (again,) = store.snapshot().read(TP, 0, 5000)
    _, offsets, data = batch.values.to_arrow().buffers()
    _, other_offsets, other_data = again.values.to_arrow().buffers()
    # Four octets for each of the records before it.
    assert (offsets.address, data.address) == (other_offsets.address + 400, other_data.address)
    assert offsets.address % 8 == data.address % 8 == 0
    assert not data.is_mutable
    with pytest.raises(ValueError, match="read-only"):
        np.frombuffer(offsets, np.int32)[0] = 1
    with pytest.raises(TypeError, match="read-only"):
        batch.values.columns()[1][0] = 1
    assert mapped_bytes(store.directory.resolve() / "data.mdb") == environment.DEFAULT_MAP_BYTES


def test_copies_keep_nothing_of_the_snapshot(store: Log, pins: WeakSet[environment.Pin]) -> None:
    put(store, 5000)
    small = TopicPartition("small", P)
    store.append([RecordBatch.of(small, 0, [b"x"])])
    with store.snapshot() as snapshot:
        batches = [*snapshot.read(TP, 100, 4000, copy=True)]
        batches += snapshot.read(small, 0, 1, copy=True)
    del snapshot
    assert len(pins) == 0
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


@pytest.mark.parametrize("kind", ["array", "slice", "offsets", "data", "values", "timestamps"])
def test_a_buffer_holds_its_snapshot(store: Log, pins: WeakSet[environment.Pin], kind: str) -> None:
    put(store, 5000)
    snapshot = store.snapshot()
    (batch,) = snapshot.read(TP, 1000, 5000)
    expected = values(1000, 5000)
    kept: Any
    match kind:
        case "array":
            kept = batch.values.to_arrow()
        case "slice":
            kept = pa.table({"value": batch.values.to_arrow()}).slice(5, 3000)
        case "offsets":
            kept = np.frombuffer(batch.values.to_arrow().buffers()[1], np.int32)
        case "data":
            kept = batch.values.columns()[1]
        case "values":
            kept = batch.values
        case _:
            kept = batch.times
    snapshot.close()
    del batch, snapshot
    gc.collect()
    held = kind != "timestamps"  # of a part of a block they are made, not read
    assert len(pins) == held
    for _ in range(30):  # were the pages free, they would be used again now
        put(store, 5000)
        store.trim(TP, store.end(TP) - 10)
    match kind:
        case "array":
            assert kept.to_pylist() == expected
        case "slice":
            assert kept["value"].to_pylist() == expected[5:3005]
        case "offsets":
            assert np.diff(kept).tolist() == [len(value) for value in expected]
        case "data":
            assert bytes(kept) == b"".join(expected)
        case "values":
            assert kept.to_list() == expected
    del kept
    assert len(pins) == 0


def test_a_closed_snapshot_says_so(store: Log) -> None:
    put(store, 5000)
    put(store, 5000)
    snapshot = store.snapshot()
    batches = snapshot.read(TP, 0, 10_000)
    first = next(batches)
    snapshot.close()
    snapshot.close()
    with pytest.raises(ClosedError, match="snapshot"):
        next(batches)
    with pytest.raises(ClosedError):
        snapshot.info(TP)
    with pytest.raises(ClosedError):
        snapshot.partitions()
    check_batches([first], 0, first.end)
    store.close()
    with pytest.raises(ClosedError, match="log"):
        store.snapshot()


def test_damage_is_found_when_it_is_reached(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, 5000)
        put(store, 5000)
    data = (tmp_path / "data.mdb").read_bytes()
    at = data.index(appender.value(7000))
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.seek(at)
        file.write(b"!")
    with Log(tmp_path, read_only=True) as store, store.snapshot() as snapshot:
        batches = snapshot.read(TP, 10, 10_000)
        check_batches([next(batches)], 10, 5000)
        with pytest.raises(StoreError, match=f"partition {P}: the block at offset 5000 .*checksum"):
            next(batches)


def test_threads_share_a_snapshot(store: Log) -> None:
    for _ in range(10):
        put(store, 3000)
    with store.snapshot() as snapshot, ThreadPoolExecutor(4) as pool:
        for found in [pool.submit(check_snapshot, snapshot) for _ in range(8)]:
            assert found.result() == 30_000


def test_snapshots_beside_a_writing_process(tmp_path: Path) -> None:
    """The writer appends, merges and trims while we read."""
    kept = []
    with child(tmp_path, 3) as process:
        told(process)
        with Log(tmp_path, read_only=True) as store:
            for _ in range(40):
                end = told(process).end
                snapshot = store.snapshot()
                info = snapshot.info(TP)
                assert info is not None
                assert info.end >= end
                kept.append((info, list(snapshot.read(TP, 0, info.end))))
                snapshot.close()
            while (tmp_path / "data.mdb").stat().st_size < 16 << 20:
                told(process)
            for info, batches in kept:
                check_batches(batches, info.earliest, info.end)
            with store.snapshot() as snapshot:
                assert check_snapshot(snapshot) > 0
        for info, batches in kept:
            check_batches(batches, info.earliest, info.end)


RESIDENT = """
import re
import sys

from dafka_core.records import TopicPartition
from dafka_core.storage import Log


def mapped_kb():
    with open("/proc/self/status") as status:
        return int(re.search(r"RssFile:\\s+(\\d+)", status.read())[1])


log = Log(sys.argv[1], read_only=True)
before_kb = most_kb = mapped_kb()
rows = 0
with log.snapshot() as snapshot:
    for batch in snapshot.read(TopicPartition("t", "P"), 0, 64_000):
        rows += len(batch.values)
        most_kb = max(most_kb, mapped_kb())
print(rows, most_kb - before_kb)
"""


def test_a_reader_keeps_no_more_of_the_file_resident_than_it_holds(tmp_path: Path) -> None:
    """64 MB are read; mapped pages that were read would count as the reader's memory."""
    content = Values.from_columns(np.arange(0, 8_001_000, 1000), bytes(8_000_000))
    with Log(tmp_path) as log:
        for offset in range(0, 64_000, 8000):
            log.append([RecordBatch(TP, offset, content)])
    with started([sys.executable, "-c", RESIDENT, str(tmp_path)]) as process:
        found, _ = process.communicate(timeout=60)
    rows, grown_kb = map(int, found.split())
    assert rows == 64_000
    assert grown_kb < 40_000
