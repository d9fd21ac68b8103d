"""Logs read in place by other processes than the one that writes them."""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dafka_core.errors import ClosedError, DataLossError, InvalidRequestError, StoreError
from dafka_core.flight import local_log
from dafka_core.flight.local_log import LocalLog, LocalLogs
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import PartitionInfo, RecordBatch
from dafka_core.storage import Log
from tests.integration.flight.hosts import (
    LARGEST,
    STORE,
    TP,
    check,
    forked,
    open_reads,
    values,
)
from tests.integration.storage import appender
from tests.integration.storage.processes import child, told


@pytest.fixture
def logs() -> Iterator[LocalLogs]:
    opened = LocalLogs()
    yield opened
    opened.close()


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    """Of a store that has records, and is not running."""
    fill(tmp_path, 10_000, 20_000, 20_005)
    return StoreLocation.begin(STORE, ["grpc://127.0.0.1:1"], tmp_path)


def fill(directory: Path, *ends: int) -> None:
    with Log(directory) as log:
        for end in ends:
            start = log.end(TP)
            log.append([RecordBatch.of(TP, start, values(start, end))])


def read(log: LocalLog | None, start: int, end: int, **options: Any) -> Any:
    assert log is not None
    return log.read(TP, start, end, **LARGEST | options)


def test_a_log_of_this_machine_is_read_in_place(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path
) -> None:
    log = logs.open(location)
    assert log is not None
    batches = check(read(log, 3, 20_005), 3, 20_005)
    assert open_reads(tmp_path) > 0
    told = [count for batch in batches for count, _ in batch.times.tolist()]  # type: ignore[union-attr]
    assert sum(told) == 20_002
    again = next(read(log, 0, 10))
    addresses = {each.values.to_arrow().buffers()[2].address for each in (batches[0], again)}
    assert len(addresses) == 1
    del batches, again
    gc.collect()
    assert open_reads(tmp_path) == 0
    (part,) = check(read(log, 5, 10), 5, 10)
    assert part.times is not None
    assert [count for count, _ in part.times.tolist()] == [5]


def test_sizes_are_those_asked_for(logs: LocalLogs, location: StoreLocation) -> None:
    log = logs.open(location)
    for batch in check(read(log, 5, 20_005, max_records=999), 5, 20_005):
        assert len(batch.values) <= 999
    for batch in check(read(log, 5, 20_005, max_bytes=5_000), 5, 20_005):
        assert sum(map(len, batch.values)) <= 5_000


def test_small_blocks_are_joined(logs: LocalLogs, tmp_path: Path) -> None:
    records = [bytes([65 + n]) * 70_000 for n in range(5)]
    with Log(tmp_path) as log:
        for offset, record in enumerate(records):
            log.append([RecordBatch.of(TP, offset, [record])])
    (batch,) = read(logs.open(StoreLocation.begin(STORE, [], tmp_path)), 0, 5)
    assert batch.values == records


def test_each_log_is_opened_once(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Log] = []

    def open_log(directory: str, *, read_only: bool) -> Log:
        opened.append(Log(directory, read_only=read_only))
        return opened[-1]

    monkeypatch.setattr(local_log, "Log", open_log)
    with ThreadPoolExecutor(8) as pool:
        assert None not in pool.map(logs.open, [location] * 32)
    assert [each.directory for each in opened] == [tmp_path]


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
    logs: LocalLogs, location: StoreLocation, wrong: dict[str, Any]
) -> None:
    assert logs.open(msgspec.structs.replace(location, **wrong)) is None
    assert logs.open(location) is not None


def test_a_directory_without_a_good_session_is_not_opened(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path
) -> None:
    session = tmp_path / "session"
    kept = session.read_bytes()
    for content in (b"", b"\xff", b"x" * 10_000_000, kept[:-3]):
        session.write_bytes(content)
        assert logs.open(location) is None
    session.unlink()
    assert logs.open(location) is None
    session.mkdir()
    assert logs.open(location) is None
    session.rmdir()
    session.write_bytes(kept)
    assert logs.open(location) is not None


def test_what_is_no_store_is_not_opened(logs: LocalLogs, tmp_path: Path) -> None:
    location = StoreLocation.begin(STORE, [], tmp_path)
    assert logs.open(location) is None
    (tmp_path / "data.mdb").write_bytes(b"hello" * 10_000)
    assert logs.open(location) is None


def test_a_store_that_starts_again_has_another_session(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path
) -> None:
    before = logs.open(location)
    batches = read(before, 0, 20_005, max_records=100)
    got = [next(batches)]
    again = StoreLocation.begin(STORE, [], tmp_path)
    assert logs.open(location) is None
    after = logs.open(again)
    check(read(after, 0, 20_005), 0, 20_005)
    # It is the same log; what was read before goes on.
    check(got + list(batches), 0, 20_005)


def test_a_log_put_in_the_place_of_another(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path
) -> None:
    before = logs.open(location)
    batches = read(before, 0, 20_005, max_records=100)
    got = [next(batches)]
    shutil.rmtree(tmp_path)
    assert logs.open(location) is None
    fill(tmp_path, 7)
    # The file has another number, or else it would be taken for the one that is open.
    after = logs.open(StoreLocation.begin(STORE, [], tmp_path))
    check(read(after, 0, 7), 0, 7)
    check(got + list(batches), 0, 20_005)


def test_what_is_not_held_is_an_error_with_the_facts(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path
) -> None:
    with Log(tmp_path) as log:
        log.trim(TP, 10_100)
    opened = logs.open(location)
    with pytest.raises(DataLossError) as before:
        list(read(opened, 0, 20_000))
    assert (before.value.wanted, before.value.available) == (0, 10_100)
    with pytest.raises(DataLossError) as beyond:
        list(read(opened, 10_100, 20_006))
    assert (beyond.value.wanted, beyond.value.available) == (20_005, None)
    assert list(read(opened, 20_005, 20_005)) == []


def test_arguments_are_checked_at_once(logs: LocalLogs, location: StoreLocation) -> None:
    log = logs.open(location)
    for start, end in ((-1, 5), (5, 4), (0, 2**63)):
        with pytest.raises(InvalidRequestError):
            read(log, start, end)
    for wrong in ({"max_records": 0}, {"max_bytes": -1}):
        with pytest.raises(InvalidRequestError, match="must be `int` >= 1"):
            read(log, 0, 5, **wrong)


def test_a_damaged_block_is_an_error(
    logs: LocalLogs, location: StoreLocation, tmp_path: Path
) -> None:
    data = (tmp_path / "data.mdb").read_bytes()
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.seek(data.index(values(15_000, 15_001)[0]))
        file.write(b"!")
    batches = read(logs.open(location), 0, 20_005)
    got = [next(batches)]
    with pytest.raises(StoreError, match=r"block at offset 10000 .*checksum"):
        got.extend(batches)
    check(got, 0, 10_000)


def test_closing_leaves_what_was_handed_out(logs: LocalLogs, location: StoreLocation) -> None:
    log = logs.open(location)
    batches = read(log, 0, 20_005, max_records=100)
    got = [next(batches)]
    logs.close()
    logs.close()
    with pytest.raises(ClosedError):
        logs.open(location)
    with pytest.raises(ClosedError):
        list(read(log, 0, 1))
    # A read that goes on does so in the moment of the log that it has.
    check(got + list(batches), 0, 20_005)


def test_a_long_read_takes_new_snapshots(
    logs: LocalLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_log, "SNAPSHOT_BYTES", 100_000)
    with Log(tmp_path) as writer:
        for start in range(0, 50_000, 5_000):
            writer.append([RecordBatch.of(TP, start, values(start, start + 5_000))])
        log = logs.open(StoreLocation.begin(STORE, [], tmp_path))
        batches = read(log, 0, 50_000)
        got = [next(batches)]
        for batch in batches:
            got.append(batch)
            del batch
        check(got, 0, 50_000)
        # A reader that lets go of what it has read holds one snapshot, not all.
        got.clear()
        gc.collect()
        assert open_reads(tmp_path) == 0
        slow = read(log, 0, 50_000)
        next(slow)
        writer.trim(TP, 49_000)
        with pytest.raises(DataLossError) as loss:
            list(slow)
        assert loss.value.available == 49_000


def test_reads_beside_a_process_that_appends_merges_and_trims(
    logs: LocalLogs, tmp_path: Path
) -> None:
    with child(tmp_path, 5) as process:
        told(process)
        location = StoreLocation.begin(STORE, [], tmp_path)
        log = logs.open(location)
        assert log is not None
        merged = complete = 0
        kept: list[list[Any]] = []
        while merged < 30:
            _, merged = told(process)
            found = held(tmp_path)
            start, end = max(found.earliest, found.end - 10_000), found.end
            batches: list[Any] = []
            # It keeps its last 20000 records; we may be that slow now and then.
            with contextlib.suppress(DataLossError):
                batches += log.read(TP, start, end, **LARGEST)
                complete += 1
            if batches:
                verify(start, batches[-1].end, batches)
                kept = [*kept[-20:], batches]
        assert complete > 10
        for each in kept:
            verify(each[0].offset, each[-1].end, each)
    # It has been killed; what is on disk is read all the same.
    found = held(tmp_path)
    batches = list(log.read(TP, found.earliest, found.end, **LARGEST))
    verify(found.earliest, found.end, batches)


def held(directory: Path) -> PartitionInfo:
    with Log(directory, read_only=True) as beside:
        found = beside.info(TP)
    assert found is not None
    return found


def verify(start: int, end: int, batches: list[Any]) -> None:
    at = start
    for batch in batches:
        assert batch.offset == at
        found = batch.values
        assert found == [appender.value(offset) for offset in range(at, batch.end)]
        at = batch.end
    assert at == end


def test_a_forked_process_has_none(location: StoreLocation) -> None:
    unused, logs = LocalLogs(), LocalLogs()
    inherited = logs.open(location)

    def work() -> object:
        opened = logs.open(location)
        logs.close()
        unused.close()
        return opened

    assert forked(work) == "None"
    check(read(inherited, 0, 20_005), 0, 20_005)
    logs.close()


def test_logs_may_be_opened_after_forking(location: StoreLocation) -> None:
    unused = LocalLogs()

    def work() -> int:
        return len(check(read(unused.open(location), 0, 20_005), 0, 20_005))

    assert int(forked(work)) > 0


def test_threads_share_a_log(logs: LocalLogs, location: StoreLocation) -> None:
    log = logs.open(location)

    def work(_: int) -> int:
        return len(check(read(log, 0, 20_005, max_records=1_000), 0, 20_005))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
