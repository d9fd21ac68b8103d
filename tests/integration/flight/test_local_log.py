"""Helpers for logs that are read from their files."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dafka_core.errors import (
    ClosedError,
    DataLossError,
    LeaseEndedError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight import local_log, server_requests
from dafka_core.flight.local_log import CACHE_LINE_BYTES, LocalLog, LocalLogs
from dafka_core.flight.requests import GetRequest, LeaseGranted, LeaseRequest, RecordRange
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.storage import leases
from dafka_core.storage.block import ALIGNMENT
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import LARGEST, STORE, TOPIC, TP, Served, check, forked, values


def opened(logs: LocalLogs, served: Served) -> LocalLog:
    log = logs.open(served.location)
    assert log is not None
    return log


def read(log: LocalLog, served: Served, start: int, end: int, **options: Any) -> Any:
    request = GetRequest((RecordRange(*TP, start, end),), **LARGEST | options)
    return log.records(served.client(), request)


def churn(served: Served, rounds: int = 12) -> None:
    """Append and trim, so that free pages are reused."""
    for _ in range(rounds):
        end = served.log.end(TP)
        served.extend(end + 5_000)
        served.log.trim(TP, end + 4_990)


def test_a_log_of_this_machine_is_read_from_its_file(logs: LocalLogs, filled: Served) -> None:
    batches = read(opened(logs, filled), filled, 3, 20_005)
    got = [next(batches)]
    assert filled.log.space().leases == 1
    got += batches
    assert filled.log.space().leases == 0
    check(got, 3, 20_005)
    stamped = [count for batch in got for count, _ in batch.times.tolist()]
    assert sum(stamped) == 20_002
    # The reader has copies: the store reuses the pages.
    churn(filled)
    check(got, 3, 20_005)


def test_sizes_are_those_asked_for(logs: LocalLogs, filled: Served) -> None:
    log = opened(logs, filled)
    for batch in check(read(log, filled, 5, 20_005, max_records=999), 5, 20_005):
        assert len(batch.values) <= 999
    for batch in check(read(log, filled, 5, 20_005, max_bytes=5_000), 5, 20_005):
        assert sum(map(len, batch.values)) <= 5_000


def test_small_blocks_are_joined(logs: LocalLogs, served: Served) -> None:
    """Values below a page share one, larger ones have pages of their own."""
    for size_bytes in (70_000, 1_000):
        records = [bytes([65 + n]) * size_bytes for n in range(5)]
        start = served.log.end(TP)
        for record in records:
            served.append(TP, [record])
        (batch,) = read(opened(logs, served), served, start, start + 5)
        assert batch.values == records


def test_blocks_are_copied_in_step_with_the_file(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values keep their offset in a cache line, which is quicker.

    Numbers are aligned, though, also those of small blocks anywhere in a page.
    """
    copied: list[tuple[int, int]] = []
    original = os.preadv

    def spied(fd: int, buffers: list[memoryview], position: int) -> int:
        address = np.frombuffer(buffers[0], np.uint8).__array_interface__["data"][0]
        copied.append((address % CACHE_LINE_BYTES, position % CACHE_LINE_BYTES))
        return original(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", spied)
    check(read(opened(logs, filled), filled, 0, 20_005), 0, 20_005)
    positions = {position for _, position in copied}
    assert 16 in positions
    assert any(position % ALIGNMENT for position in positions)
    assert all(address == position - position % ALIGNMENT for address, position in copied)


def test_each_log_is_opened_once_and_for_reading_only(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only mount suffices."""
    files: list[tuple[str, int]] = []
    original = os.open

    def spied(path: Any, flags: int, *more: Any, **options: Any) -> int:
        files.append((Path(path).name, flags & (os.O_ACCMODE | os.O_CREAT)))
        return original(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", spied)
    with ThreadPoolExecutor(8) as pool:
        assert None not in pool.map(logs.open, [filled.location] * 32)
    assert files == [("data.mdb", os.O_RDONLY), ("leases", os.O_RDONLY)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"machine": "another"},
        {"machine": ""},
        {"directory": ""},
        {"directory": "/nowhere"},
        {"session": ""},
        {"session": "0" * 32},
    ],
)
def test_only_the_log_that_is_meant_is_opened(
    logs: LocalLogs, served: Served, wrong: dict[str, Any]
) -> None:
    assert logs.open(msgspec.structs.replace(served.location, **wrong)) is None
    assert logs.open(served.location) is not None


def test_a_directory_without_a_good_session_is_not_opened(logs: LocalLogs, served: Served) -> None:
    session = served.directory / "session"
    kept = session.read_bytes()
    for content in (b"", b"\xff", b"x" * 10_000_000, kept[:-3]):
        session.write_bytes(content)
        assert logs.open(served.location) is None
    session.unlink()
    assert logs.open(served.location) is None
    session.mkdir()
    assert logs.open(served.location) is None
    session.rmdir()
    session.write_bytes(kept)
    assert logs.open(served.location) is not None


def test_what_is_no_store_is_not_opened(logs: LocalLogs, tmp_path: Path) -> None:
    assert logs.open(StoreLocation.begin(STORE, [], tmp_path)) is None


def test_a_file_system_of_other_machines_is_not_opened(
    logs: LocalLogs, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_log, "not_local", lambda _: "NFS")
    assert logs.open(served.location) is None


def test_a_copy_of_the_directory_has_no_leases(
    logs: LocalLogs, filled: Served, tmp_path: Path
) -> None:
    """As in a container whose image contains the directory under the same name."""
    copy = tmp_path / "copy"
    shutil.copytree(filled.directory, copy, ignore=shutil.ignore_patterns("*.sock"))
    location = msgspec.structs.replace(filled.location, directory=str(copy))
    log = logs.open(location)
    assert log is not None
    with pytest.raises(LeaseEndedError) as ended:
        list(read(log, filled, 0, 20_005))
    assert (ended.value.store, ended.value.offset) == (STORE, 0)


def test_a_store_that_starts_again_has_another_session(logs: LocalLogs, filled: Served) -> None:
    before = filled.location
    filled.stop()
    filled.start()
    assert logs.open(before) is None
    check(read(opened(logs, filled), filled, 0, 20_005), 0, 20_005)


def test_a_log_put_in_the_place_of_another(logs: LocalLogs, tmp_path: Path) -> None:
    with Served(tmp_path) as first:
        first.extend(20_005)
        batches = read(opened(logs, first), first, 0, 20_005, max_records=100)
        got = [next(batches)]
        location = first.location
        check(got + list(batches), 0, 20_005)
    shutil.rmtree(tmp_path)
    assert logs.open(location) is None
    with Served(tmp_path) as second:
        second.extend(7)
        check(read(opened(logs, second), second, 0, 7), 0, 7)


def test_a_damaged_block_is_an_error(logs: LocalLogs, filled: Served) -> None:
    path = filled.directory / "data.mdb"
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(values(15_000, 15_001)[0]))
        file.write(b"!")
    batches = read(opened(logs, filled), filled, 0, 20_005)
    got = [next(batches)]
    with pytest.raises(StoreError, match=r"block at offset 10000 .*checksum"):
        got.extend(batches)
    check(got, 0, 10_000)


def get(start: int, end: int) -> GetRequest:
    return GetRequest((RecordRange(*TP, start, end),))


class Liar:
    """A store that reports block positions chosen by a test."""

    def __init__(self, served: Served, **wrong: Any) -> None:
        self._client = served.client()
        self._wrong = wrong

    def lease(self, request: LeaseRequest, *, timeout_s: float) -> LeaseGranted:
        granted = self._client.lease(request, timeout_s=timeout_s)
        return msgspec.structs.replace(granted, **self._wrong)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        (((0, 0, 0, 4096),), "does not begin as a block"),
        (((0, 0, 1 << 40, 4096),), "the file ends within it"),
        (((0, 0, 2**63 - 8, 4096),), "Invalid argument"),
        ("second", "it holds offsets 10000 to 20000"),
    ],
)
def test_a_block_that_is_not_there_is_an_error(
    logs: LocalLogs, filled: Served, blocks: Any, says: str
) -> None:
    if blocks == "second":
        second = LeaseRequest((RecordRange(*TP, 10_000, 20_000),))
        blocks = filled.client().lease(second, timeout_s=5).blocks
    liar: Any = Liar(filled, blocks=blocks)
    with pytest.raises(StoreError, match=says):
        list(opened(logs, filled).records(liar, get(0, 10_000)))


@pytest.mark.parametrize("wrong", [{"blocks": ()}, {"ranges": 0}, {"lease": "0" * 32}])
def test_a_lease_without_the_records_is_an_error_of_one_range_and_skipped_in_a_partial_get(
    logs: LocalLogs, filled: Served, wrong: dict[str, Any]
) -> None:
    log, request = opened(logs, filled), get(0, 10_000)
    liar: Any = Liar(filled, **wrong)
    with pytest.raises(LeaseEndedError):
        list(log.records(liar, request))
    assert list(log.records(liar, msgspec.structs.replace(request, partial=True))) == []


def test_ranges_share_leases(
    logs: LocalLogs, filled: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that is longer than a lease continues with the next one."""
    monkeypatch.setattr(server_requests, "MAX_LEASED_BLOCKS", 1)
    filled.extend(500, partition="Q")
    other = TopicPartition(TOPIC, "Q")
    ranges = RecordRange(*TP, 5, 20_005), RecordRange(*other, 7, 7), RecordRange(*other, 0, 500)
    missing = RecordRange(TOPIC, "none", 0, 1), RecordRange(*TP, 0, 20_006)
    log, client = opened(logs, filled), filled.client()
    for request in (GetRequest(ranges), GetRequest((*missing, *ranges), partial=True)):
        found = list(log.records(client, request))
        check([batch for batch in found if batch.tp == TP], 5, 20_005)
        check([batch for batch in found if batch.tp == other], 0, 500)
    with pytest.raises(DataLossError):
        list(log.records(client, GetRequest((*ranges, *missing))))
    assert filled.log.space().leases == 0


def test_closing_leaves_what_was_handed_out(logs: LocalLogs, filled: Served) -> None:
    log = opened(logs, filled)
    batches = read(log, filled, 0, 20_005, max_records=100)
    got = [next(batches)]
    logs.close()
    logs.close()
    with pytest.raises(ClosedError):
        logs.open(filled.location)
    with pytest.raises(ClosedError):
        list(read(log, filled, 0, 1))
    check(got + list(batches), 0, 20_005)


def test_without_a_store_there_is_no_lease(logs: LocalLogs, filled: Served) -> None:
    log, client = opened(logs, filled), filled.client()
    filled.stop()
    with pytest.raises(StoreUnreachableError):
        list(log.records(client, get(0, 10)))


def test_a_forked_process_has_none(filled: Served) -> None:
    location = filled.location
    logs = LocalLogs()
    log = opened(logs, filled)
    assert "ForkedError" in forked(lambda: logs.open(location))
    check(read(log, filled, 0, 20_005), 0, 20_005)
    logs.close()


def test_threads_share_a_log(logs: LocalLogs, filled: Served) -> None:
    log = opened(logs, filled)

    def work(_: int) -> int:
        return len(check(read(log, filled, 0, 20_005, max_records=1_000), 0, 20_005))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1


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
    monkeypatch.setattr(server_requests, "MAX_LEASED_BYTES", 100_000)
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
    original = LocalLog._block

    def disturbed(files: Any, position: int, size_bytes: int) -> Any:
        block = original(files, position, size_bytes)
        churn(filled)
        with pytest.raises(ValueError, match="block"):
            original(files, position, size_bytes)
        return block

    filled.log.trim(TP, 20_000)
    churn(filled)
    start, end = filled.log.end(TP) - 10, filled.log.end(TP)
    monkeypatch.setattr(LocalLog, "_block", disturbed)
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
