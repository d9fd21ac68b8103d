"""One directory in one process: its map is shared, and closed after its last use."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dafka_core.errors import ClosedError, StoreError
from dafka_core.storage import Log
from tests.integration.storage.processes import (
    TP,
    check_batches,
    put,
)


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


def emptied(directory: Path) -> None:
    """As a cleaner of temporary files does."""
    for file in directory.iterdir():
        file.unlink()


def put_back(directory: Path) -> None:
    """From a copy: its content is equal, and its files are others."""
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
        lambda directory: (directory / "leases").unlink(),
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
