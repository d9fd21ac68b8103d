"""Reads of a store's file, and the leases that protect them."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dafka_core.errors import (
    DataLossError,
    LeaseEndedError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight import local_log, server_actions
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.requests import LeaseRequest, RecordRange
from dafka_core.model.records import RecordBatch
from dafka_core.storage import leases
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import TP, Served, check
from tests.integration.flight.local_logs import churn, opened, read


def test_who_takes_all_leases_shuts_nobody_out(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger that returns no lease, at a store that writes nothing."""
    monkeypatch.setattr(leases, "FRESH_S", 3600.0)
    stranger = filled.client(filled.tcp)
    for _ in range(leases.MAX_LEASES):
        stranger.lease(LeaseRequest((RecordRange(*TP, 0, 1),)), timeout_s=PATIENCE_S)
    with pytest.raises(StoreUnreachableError, match=f"{leases.MAX_LEASES} leases are held"):
        list(read(opened(logs, filled), filled, 0, 10))
    monkeypatch.setattr(leases, "FRESH_S", 0.0)
    check(read(opened(logs, filled), filled, 0, 20_005), 0, 20_005)


def test_a_long_read_takes_new_leases(
    logs: LocalLogs, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_actions, "MAX_LEASED_BYTES", 100_000)
    for end in range(5_000, 50_001, 5_000):
        served.extend(end)
    log = opened(logs, served)
    check(read(log, served, 0, 50_000), 0, 50_000)
    assert served.log.space().leases == 0
    slow = read(log, served, 0, 50_000)
    next(slow)
    served.log.trim(TP, 49_000)
    with pytest.raises(DataLossError) as loss:
        list(slow)
    assert loss.value.available == 49_000


def test_a_slow_reader_goes_on_with_another_lease(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_S", -1.0)
    batches = read(opened(logs, filled), filled, 0, 20_005)
    got = [next(batches)]
    assert filled.log.space().leases == 0  # ended
    filled.extend(25_000)
    check(got + list(batches), 0, 20_005)


def test_what_was_read_of_a_lease_that_has_ended_is_not_handed_on(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store ends the lease and overwrites the pages between the read and the check."""
    monkeypatch.setattr(leases, "LEASE_S", -1.0)
    original = local_log._Files.block

    def disturbed(files: Any, position: int, size_bytes: int) -> Any:
        block = original(files, position, size_bytes)
        churn(filled)
        with pytest.raises(ValueError, match="block"):
            original(files, position, size_bytes)
        return block

    filled.log.trim(TP, 20_000)
    churn(filled)
    start, end = filled.log.end(TP) - 10, filled.log.end(TP)
    monkeypatch.setattr(local_log._Files, "block", disturbed)
    with pytest.raises(LeaseEndedError) as ended:
        list(read(opened(logs, filled), filled, start, end))
    assert ended.value.offset == start


def test_a_lease_that_cannot_be_looked_at_is_an_error(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = opened(logs, filled)
    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(StoreError, match="file leases: Input/output error"):
        list(read(log, filled, 0, 10))


def test_reads_beside_a_store_that_appends_merges_and_trims(
    logs: LocalLogs, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases end all the time: returned records stay right."""
    monkeypatch.setattr(leases, "LEASE_WRITTEN_BYTES", 1 << 16)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for _ in range(10):
                served.extend(served.log.end(TP) + 300)
            while served.log.merge_step():
                pass
            served.log.trim(TP, max(served.log.end(TP) - 20_000, 0))

    log = opened(logs, served)
    complete = 0
    kept: list[tuple[int, list[RecordBatch]]] = []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            wait_until(lambda: served.log.end(TP) > 10_000)
            while complete < 100:
                end = served.log.end(TP)
                batches: list[RecordBatch] = []
                with contextlib.suppress(DataLossError, LeaseEndedError):
                    batches += read(log, served, end - 10_000, end)
                    complete += 1
                kept = [*kept[-20:], (end - 10_000, batches)]
        finally:
            done.set()
        writing.result()
    for start, batches in kept:
        check(batches, start, batches[-1].end if batches else start)
