"""Merging beside a store: it happens by itself, gives way, and survives what the disk does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.log_entries import Stage
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.nodes import maintenance as module
from dafka_core.nodes.maintenance import MergeThread
from dafka_core.storage import Log, entry_writer
from dafka_core.testing import wait_until

TP = TopicPartition("t", "p")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Each append makes a block."""
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "QUIET_S", 0.2)
    monkeypatch.setattr(module, "IDLE_S", 0.02)
    with Log(tmp_path) as opened:
        yield opened


@pytest.fixture
def merge(log: Log) -> Iterator[Callable[[], MergeThread]]:
    mergers = []

    def start() -> MergeThread:
        mergers.append(MergeThread(log))
        return mergers[-1]

    yield start
    for merger in mergers:
        merger.close()


def put(log: Log, appends: int) -> None:
    for _ in range(appends):
        log.append([RecordBatch.of(TP, log.end(TP), [b"x" * 100])])


def blocks(log: Log) -> int:
    with log.snapshot() as snapshot:
        return len(list(snapshot.read(TP, 0, log.end(TP))))


def test_small_blocks_are_merged_in_quiet_times(
    log: Log, merge: Callable[[], MergeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    merge()
    for round_ in range(1, 4):
        put(log, 64)
        wait_until(lambda: blocks(log) <= 8)
        assert log.end(TP) == 64 * round_
    values = [value for batch in log.read(TP, 0, 999) for value in batch.values.to_list()]
    assert values == [b"x" * 100] * 192


def test_it_gives_way_until_blocks_have_piled_up(
    log: Log, merge: Callable[[], MergeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PILED_UP", 200)
    monkeypatch.setattr(module, "QUIET_S", 2)
    put(log, 1)
    merge()
    put(log, 149)
    assert blocks(log) == 150
    while log.end(TP) < 2000 and blocks(log) == log.end(TP):
        put(log, 1)
    assert blocks(log) < log.end(TP)


def test_a_failing_disk_is_logged_and_retried(
    log: Log,
    merge: Callable[[], MergeThread],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    step = log.merge_step
    failures = iter([StoreError(log.directory, "the disk is full")] * 3)

    def fails_at_first() -> bool:
        for failure in failures:
            raise failure
        return step()

    monkeypatch.setattr(log, "merge_step", fails_at_first)
    with caplog.at_level(logging.ERROR, "dafka.store"):
        merge()
        put(log, 64)
        wait_until(lambda: blocks(log) <= 8)
    assert [record.getMessage() for record in caplog.records] == [
        f"merging, compressing or linking blocks: store at {log.directory}: the disk is full"
    ] * 3


def test_it_ends_quickly(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 60)
    merger = MergeThread(log)
    wait_until(lambda: not log.merge_step())
    started = time.monotonic()
    merger.close()
    merger.close()
    assert time.monotonic() - started < 5


def test_it_ends_with_its_log(log: Log) -> None:
    merger = MergeThread(log)
    log.close()
    wait_until(lambda: "dafka-merger" not in {thread.name for thread in threading.enumerate()})
    merger.close()


def test_stale_staged_records_are_discarded(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    attempt = "A" * 32
    log.write([Stage(RecordBatch.of(TP, 0, [b"x"]), attempt)])
    # The store's loop completes records from another store.
    log.write([RecordBatch.of(TopicPartition("t", "q"), 0, [b"x"], Transaction(1, 0, 2))])
    with MergeThread(log, staged_hours=0.2 / 3600):
        wait_until(lambda: log.transaction_state(TP).staged_end == 0)
    assert "discarded what was staged in 1 partitions" in caplog.text
    assert log.transaction_state(TopicPartition("t", "q")).staged_end == 1
