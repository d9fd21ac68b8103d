"""One directory in one process: its map is shared, and closed when nothing uses it any more."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakSet

import pytest

from dafka_core.errors import ClosedError, StoreError
from dafka_core.records import RecordBatch
from dafka_core.storage import Log
from dafka_core.storage.environment import Pin
from tests.integration.storage import appender
from tests.integration.storage.processes import (
    TP,
    check_batches,
    check_snapshot,
    child,
    put,
    started,
    told,
    values_of,
)


def test_one_process_maps_a_directory_once(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, 1000)
        with Log(tmp_path, read_only=True) as other, other.snapshot() as snapshot:
            put(store, 1000)
            assert other.end(TP) == 2000
            assert check_snapshot(snapshot) == 1000
            with pytest.raises(StoreError, match="for reading only"):
                put(other, 1)
        put(store, 1000)
    with Log(tmp_path, read_only=True) as one, Log(tmp_path, read_only=True) as two:
        with pytest.raises(StoreError, match="this process has it open for reading"):
            Log(tmp_path)
        one.close()
        with two.snapshot() as snapshot:
            assert check_snapshot(snapshot) == 3000
    with Log(tmp_path) as store:
        put(store, 1)


def test_buffers_outlive_the_log(tmp_path: Path, pins: WeakSet[Pin]) -> None:
    with Log(tmp_path) as store:
        put(store, 5000)
        batches = list(store.snapshot().read(TP, 0, 5000))
    with Log(tmp_path) as store:  # finds the directory still mapped in this process
        for _ in range(30):
            put(store, 5000)
            store.trim(TP, store.end(TP) - 10)
        check_batches(batches, 0, 5000)
        thread = threading.Thread(target=batches.clear)
        thread.start()
        thread.join()
        assert len(pins) == 0


def test_closing_waits_for_reads_and_writes(tmp_path: Path) -> None:
    """Threads read and write until the log is closed under them."""

    def read(store: Log) -> None:
        found = store.read(TP, 0, 3000)
        check_batches(found, 0, sum(batch.count for batch in found))

    def check(store: Log) -> None:
        with store.snapshot() as snapshot:
            found = list(snapshot.read(TP, 0, 3000))
            check_batches(found, 0, sum(batch.count for batch in found))

    def append(store: Log) -> None:
        put(store, 1000)

    def use(work: Callable[[Log], None], store: Log, begun: threading.Barrier) -> None:
        begun.wait()
        with contextlib.suppress(ClosedError):
            while True:
                work(store)

    for number in range(20):
        store, begun = Log(tmp_path / f"{number}"), threading.Barrier(4)
        with ThreadPoolExecutor(3) as pool:
            uses = [pool.submit(use, work, store, begun) for work in (read, check, append)]
            begun.wait()
            time.sleep(0.01)
            store.close()
            for each in uses:
                each.result()


def test_a_log_open_for_reading_does_not_write(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        put(store, 1)
    with Log(tmp_path, read_only=True) as store:
        assert values_of(store) == [appender.value(0)]
        with pytest.raises(StoreError, match="for reading only"):
            store.append([RecordBatch.of(TP, 1, [b"b"])])
        with pytest.raises(StoreError, match="for reading only"):
            store.trim(TP, 1)


def emptied(directory: Path) -> None:
    """As a cleaner of temporary files does."""
    for file in directory.iterdir():
        file.unlink()


def put_back(directory: Path) -> None:
    """From a copy: everything is there, and nothing of it is what was opened."""
    shutil.copytree(directory, copy := directory.with_name("copy"))
    shutil.rmtree(directory)
    copy.rename(directory)


@pytest.mark.parametrize(
    "lose",
    [
        shutil.rmtree,
        emptied,
        put_back,
        lambda directory: directory.rename(directory.with_name("away")),
        lambda directory: (directory / "data.mdb").unlink(),
        lambda directory: (directory / "writer.lock").unlink(),
        lambda directory: (directory / "lock.mdb").unlink(),
    ],
)
def test_nothing_is_written_once_the_directory_is_lost(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    directory = tmp_path / "store"
    with Log(directory) as store:
        put(store, 1)
        store.check_in_place()
        lose(directory)
        with pytest.raises(StoreError, match="removed, renamed or replaced"):
            store.check_in_place()
        with pytest.raises(StoreError, match="removed, renamed or replaced"):
            put(store, 1)


def test_a_log_stays_in_place_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Log("store") as store:
        monkeypatch.chdir("/")
        put(store, 1)


def test_what_a_killed_reader_held_back_is_freed(tmp_path: Path) -> None:
    with child(tmp_path, 1) as process:
        told(process)
    with Log(tmp_path) as store:
        put(store, 10)
        program = (
            "import sys, os, signal; from dafka_core.storage import Log;"
            "snapshot = Log(sys.argv[1], read_only=True).snapshot();"
            "print(len(snapshot.partitions()), 0, flush=True); sys.stdin.read()"
        )
        with started([sys.executable, "-c", program, str(tmp_path)]) as reader:
            assert told(reader).end == 1
            assert store.check_readers() == 0
        reader.wait()
        assert store.check_readers() == 1
        assert store.check_readers() == 0
        data = tmp_path / "data.mdb"
        sizes = []
        for _ in range(12):
            put(store, 5000)
            store.trim(TP, store.end(TP) - 10)
            sizes.append(data.stat().st_size)
        assert sizes[-1] == sizes[5]
