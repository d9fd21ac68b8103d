"""Readers of a store's file in containers: mounts, equal process ids, signals, overlays."""

import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from dafka_core.errors import DataLossError
from dafka_core.flight.requests import LeaseRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.storage import Log, leases
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight import hosts, local_reader
from tests.integration.flight.hosts import TP, Served
from tests.integration.flight.test_local_log import churn
from tests.integration.storage import appender, processes
from tests.integration.storage.containers import (
    beside,
    can_contain,
    contained,
    inner,
    overlay,
    read_only,
    send,
)
from tests.integration.storage.processes import started, told

Process = subprocess.Popen[str]


def reader_of(location: StoreLocation, values: str) -> list[str]:
    return [sys.executable, "-m", local_reader.__name__, location.packed().decode(), values]


def said(process: Process) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def asked(reader: Process, line: str = "read") -> list[str]:
    """Return the reader's answer to a line."""
    assert reader.stdin is not None
    print(line, file=reader.stdin, flush=True)
    return said(reader)


def check_reads(reader: Process) -> None:
    """Read until the reader gets records: a quick store may trim them first."""
    wait_until(lambda: int(asked(reader)[-1]) > 0)


def leased(client: StoreClient) -> bool:
    """Lease the last record, unless a quick store trims it."""
    [held] = client.heads(None, timeout_s=PATIENCE_S)
    with contextlib.suppress(DataLossError):
        last = LeaseRequest((RecordRange(*TP, held.end - 1, held.end),))
        return bool(client.lease(last, timeout_s=PATIENCE_S).lease)
    return False


def check_right(reader: Process) -> None:
    """Check that the reader still has what was written."""
    assert reader.stdin is not None
    reader.stdin.close()
    assert said(reader) == ["right"]
    assert reader.wait() == 0


@contextlib.contextmanager
def reading(served: Served) -> Iterator[Process]:
    """A reader in a container with a read-only mount of the store's directory."""
    command = contained(reader_of(served.location, hosts.__name__), read_only(served.directory))
    with started(command) as reader:
        process_id, may_write = said(reader)
        if can_contain():
            assert (process_id, may_write) == ("1", "False")
        yield reader


def test_a_read_only_mount_will_do(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases end, and the store reuses its pages, all the time; the reader's records stay."""
    monkeypatch.setattr(leases, "LEASE_WRITTEN_BYTES", 1 << 16)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            churn(served, 1)
            while served.log.merge_step():
                pass

    served.extend(local_reader.LAST)
    with reading(served) as reader, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            counts = [int(asked(reader)[-1]) for _ in range(60)]
        finally:
            done.set()
        writing.result()
        assert sum(counts) > 0
        check_right(reader)


@pytest.mark.parametrize("by", [signal.SIGSTOP, signal.SIGKILL])
def test_a_reader_that_is_stopped_or_killed_costs_no_more_than_its_lease(
    served: Served, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    monkeypatch.setattr(leases, "LEASE_WRITTEN_BYTES", 4 << 20)
    served.extend(5_000)
    data = served.directory / "data.mdb"
    with reading(served) as reader:
        assert asked(reader, "stop") == ["reading"]
        status = Path(f"/proc/{inner(reader)}/stat")
        begun_bytes = data.stat().st_size
        assert served.log.space().leases == 1
        send(reader, by)
        if by is signal.SIGSTOP:
            wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
        else:
            reader.wait()
        sizes = []
        for _ in range(100):
            churn(served, 3)
            sizes.append(data.stat().st_size)
        assert served.log.space().leases == 0
        # It has grown by the lease's budget and one write more, and no further.
        assert begun_bytes + (2 << 20) <= sizes[-1] <= begun_bytes + (6 << 20)
        assert sizes[-1] == sizes[-30]
        assert served.log.space().free_bytes > 2 << 20
        if by is signal.SIGSTOP:
            send(reader, signal.SIGCONT)
            assert asked(reader, "") == ["LeaseEndedError", "0"]
            assert int(asked(reader)[-1]) > 0
            check_right(reader)


def test_a_store_and_its_readers_are_process_1_each(directory: Path) -> None:
    """The store is killed during a lease; the next one has its process id and its space.

    The readers keep all their records.
    """
    data, sizes, ends = directory / "data.mdb", [0], [0]
    command = [sys.executable, "-m", appender.__name__, str(directory), "7", "serve"]
    readers: list[Process] = []
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            with started(contained(command)) as store:
                assert store.stdout is not None
                location = StoreLocation.parse(store.stdout.readline())
                assert told(store).end >= ends[-1]
                reading = contained(reader_of(location, appender.__name__))
                readers.append(reader := stack.enter_context(started(reading)))
                process_id, _ = said(reader)
                assert process_id == "1" or not can_contain()
                for _ in range(200):
                    end = told(store).end
                check_reads(reader)
                with StoreClient(location) as client:
                    wait_until(partial(leased, client))
                send(store, signal.SIGKILL)
                store.wait()
                ends.append(end)
                sizes.append(data.stat().st_size)
        for reader in readers:
            check_right(reader)
    # Each has written at least 60 MB, and trimmed all but the last 20,000 records.
    assert sizes[-1] < sizes[1] + (12 << 20)


def test_a_store_on_an_overlay(tmp_path: Path) -> None:
    """An overlay as containers have it: the image's layer below, and a writable one."""
    image, merged, layer = (tmp_path / name for name in ("image", "merged", "layer"))
    merged.mkdir()
    with Log(image) as log:
        processes.put(log, 5_000, 3_000)
    before = hashlib.sha256((image / "data.mdb").read_bytes()).digest()
    if not can_contain():
        shutil.copytree(image, merged, dirs_exist_ok=True)
    command = [sys.executable, "-m", appender.__name__, str(merged), "7", "serve"]
    end = 8_000
    for _ in range(2):
        with started(contained(command, overlay(image, layer, merged))) as store:
            assert store.stdout is not None
            location = StoreLocation.parse(store.stdout.readline())
            assert told(store).end >= end
            with started(beside(store, reader_of(location, appender.__name__))) as reader:
                said(reader)
                for _ in range(10):
                    end = told(store).end
                    check_reads(reader)
                check_right(reader)
            if can_contain():
                # Another container of this image has a file of its own there, without the
                # session.
                elsewhere = overlay(image, tmp_path / "another", merged)
                there = contained(reader_of(location, appender.__name__), elsewhere)
                with started(there) as reader:
                    said(reader)
                    assert said(reader) == ["not", "here"]
            send(store, signal.SIGKILL)
            store.wait()
    assert hashlib.sha256((image / "data.mdb").read_bytes()).digest() == before
    assert (layer / "upper/data.mdb").exists() == can_contain()
