"""Merging: fewer blocks and the same records, at every moment."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.storage import Log, block, block_rewriter, entry_writer
from dafka_core.storage.block import Block, header_of
from dafka_core.storage.environment import Environment
from dafka_core.storage.tables import Tables
from tests.integration.storage import appender
from tests.integration.storage.damage import spoil
from tests.integration.storage.processes import TP, P, check_batches, check_snapshot, put, values_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A log in which each append makes a block, and whose full blocks have 1000 records."""
    monkeypatch.setattr(block, "MAX_BLOCK_RECORDS", 1000)
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    with Log(tmp_path / "store") as opened:
        yield opened


def merged(store: Log) -> int:
    """Merge completely; return the number of steps."""
    steps = 0
    while store.merge_step():
        steps += 1
    return steps


def counts(store: Log, topic: str = "t") -> list[int]:
    """Return the number of records of each block."""
    tp = TopicPartition(topic, P)
    with store.snapshot() as snapshot:
        info = snapshot.info(tp)
        assert info is not None
        batches = list(snapshot.read(tp, 0, info.end))
        check_batches(batches, info.earliest, info.end)
        return [batch.count for batch in batches]


def test_small_blocks_become_one(store: Log) -> None:
    put(store, *[1] * 7)
    merged(store)
    assert counts(store) == [1] * 7
    put(store, 1)
    merged(store)
    assert counts(store) == [8]
    put(store, *[8] * 7)
    merged(store)
    assert counts(store) == [64]
    put(store, 500)
    assert merged(store) == 0
    assert counts(store) == [64, 500]
    put(store, 1, 2)
    put(store, 700, 5)
    assert merged(store) == 1
    assert counts(store) == [64, 500, 3, 700, 5]


def test_blocks_from_before_the_log_was_opened_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_rewriter, "SCAN_BLOCKS", 20)
    monkeypatch.setattr(block, "MAX_BLOCK_RECORDS", 1000)
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    with Log(tmp_path) as store:
        for topic in ("t", "u", "v"):
            put(store, *[1] * 25, topic=topic)
        put(store, 1, topic="w")
        put(store, *[600] * 20, *[1] * 8, topic="x")
    with Log(tmp_path) as store:
        put(store, 1, topic="u")
        assert merged(store) > 3
        for topic, end in (("t", 25), ("u", 26), ("v", 25)):
            assert sum(counts(store, topic)) == end
            assert len(counts(store, topic)) <= 7
        assert counts(store, "w") == [1]
        assert counts(store, "x") == [*[600] * 20, 8]
        assert merged(store) == 0
        put(store, *[1] * 8)
        merged(store)
        assert len(counts(store)) <= 6


def test_blocks_are_examined_once_although_the_log_is_opened_again(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *[600] * 20, 1, 2, 600, *[1] * 7)
    merged(store)
    put(store, 600)
    store.close()
    looked_at = Mock(wraps=header_of)
    monkeypatch.setattr(block_rewriter, "header_of", looked_at)
    with Log(store.directory) as again:
        assert merged(again) > 1
        assert counts(again)[-3:] == [600, 7, 600]
        assert 0 < looked_at.call_count < 20
        again.write([SetAside(TP, 700)])
        put(again, 1, 2, 600)
    with Log(store.directory) as again:
        merged(again)
        assert counts(again) == [600, 103, 600]


def test_a_stretch_longer_than_a_scan_ends(store: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_rewriter, "SCAN_BLOCKS", 8)
    put(store, *[1] * 7, 3, *[1] * 7)  # none is small enough beside the others
    steps = sum(1 for _ in itertools.takewhile(lambda _: store.merge_step(), range(100)))
    assert steps < 10
    assert sum(counts(store)) == 17


def test_a_partition_that_cannot_be_examined_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("here", "a damaged row")

    with Log(tmp_path) as store:
        put(store, *[1] * 300)
        monkeypatch.setattr(Tables, "staged_start", fail)
        waiting = store.small_blocks
        for _ in range(50):
            with contextlib.suppress(StoreError):
                store.merge_step()
        assert store.small_blocks < waiting


def test_blocks_extended_or_trimmed_since_are_merged_as_they_are(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *[1] * 8)
    assert merged(store) > 0
    put(store, *[8] * 7)
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(entry_writer, "GROUPED_SHARE", 1 << 30)
    put(store, 10)
    merged(store)
    assert counts(store) == [*[8] * 7, 18]
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    put(store, 900)
    assert merged(store) > 0
    assert counts(store) == [74, 900]
    put(store, *[1] * 20)
    store.trim(TP, 990)
    merged(store)
    assert sum(counts(store)) == 4


def test_what_changes_between_reading_and_writing_is_left(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(store)  # so that it examines only what is written from now on
    put(store, *[1] * 20)
    write = Environment.write
    swaps: list[object] = []

    def trimmed_first(env: Environment, work: Callable[[Tables], object]) -> object:
        if not swaps:
            swaps.append(None)
            store.trim(TP, 5)
            swaps.append(write(env, work))
            return swaps[-1]
        return write(env, work)

    monkeypatch.setattr(Environment, "write", trimmed_first)
    merged(store)
    assert swaps == [None, (False, [], set())]
    assert store.info(TP) == PartitionInfo("t", P, 5, 20)
    assert counts(store) == [15]


def test_blocks_before_one_of_the_append_area_become_one(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 300, 100)
    merged(store)
    assert counts(store) == [300, 100]
    with monkeypatch.context() as grouping:
        grouping.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1 << 30)
        put(store, 1)
    put(store, 5)
    merged(store)
    assert counts(store) == [400, 1, 5]


def test_damage_is_told_once_and_does_not_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    with Log(tmp_path) as store:
        put(store, 400, 400, 400, 400)
        put(store, *[1] * 8, topic="u")
    spoil(tmp_path / "data.mdb", appender.value(500))
    monkeypatch.setattr(block, "MAX_BLOCK_RECORDS", 1000)
    with Log(tmp_path) as store:
        put(store, 1)
        with pytest.raises(StoreError, match=f"'t', partition {P}: the block at offset 400 cannot"):
            merged(store)
        merged(store)
        check_batches(store.read(TP, 0, 400), 0, 400)
        check_batches(store.read(TP, 800, 1601), 800, 1601)
        with pytest.raises(StoreError, match="the block at offset 400 cannot"):
            store.read(TP, 0, 1600)


def test_merging_under_load(store: Log) -> None:
    """One thread appends, one merges, two read copies, two take snapshots; all is compared."""
    written = threading.Event()
    steps = 0

    def merge() -> None:
        nonlocal steps
        while not written.is_set():
            steps += store.merge_step()

    def read() -> int:
        rounds = 0
        while not written.is_set() or rounds == 0:
            info = store.info(TP)
            assert info is not None
            start = chance.randrange(info.earliest, info.end)
            batches = store.read(TP, start, info.end)
            first, end = (batches[0].offset, batches[-1].end) if batches else (start, start)
            check_batches(batches, first, end)
            held = store.info(TP)
            assert held is not None  # only trimmed records may be missing
            assert first == start or first <= held.earliest
            assert end == info.end or end <= held.earliest
            rounds += 1
        return rounds

    def take() -> int:
        rounds = 0
        while not written.is_set() or rounds == 0:
            with store.snapshot() as snapshot:
                check_snapshot(snapshot)
            rounds += 1
        return rounds

    chance = random.Random(6)
    put(store, 5)
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(work) for work in (merge, read, read, take, take)]
        enough, deadline = time.monotonic() + 1, time.monotonic() + 60
        try:
            while time.monotonic() < (deadline if steps <= 10 else enough):
                put(store, chance.choice((1, 5, 20, 400)))
                if chance.random() < 0.05:
                    store.trim(TP, max(0, store.end(TP) - 4000))
        finally:
            written.set()
        assert all((found := each.result()) is None or found > 0 for each in running)
    assert steps > 10
    merged(store)
    assert len(values_of(store)) == sum(counts(store)) > 0


def test_records_set_aside_meanwhile_do_not_return(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *[10] * 30)
    ends: list[int] = []

    def merge_slowly(blocks: list[Block], buffer: bytearray) -> memoryview:
        if not ends:
            ends.append(sum(each.count for each in blocks) - 5)
            store.write([SetAside(TP, ends[0])])
        return block.merge(blocks, buffer)

    monkeypatch.setattr(block_rewriter, "merge", merge_slowly)
    merged(store)
    assert sum(counts(store)) == store.end(TP) == ends[0]
