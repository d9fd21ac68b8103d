"""Leases of a log's pages: their ends, what they protect, and what readers see."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import ClosedError, StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log, append_area, leases
from dafka_core.storage.leases import ID_BYTES, LEASE_FILE, MAX_LEASES, Lease
from tests.integration.storage.processes import TP, child, put, started, told
from tests.integration.storage.staged import clean


def given(log: Log) -> Lease:
    _, lease = log.lease([(TP, 0, log.end(TP))], max_blocks=1_000, max_bytes=1 << 30)
    assert lease is not None
    return lease


def holds(directory: Path, lease: Lease) -> bool:
    slots = (directory / LEASE_FILE).read_bytes()
    assert len(slots) == MAX_LEASES * ID_BYTES
    return slots[lease.slot * ID_BYTES :][:ID_BYTES].hex() == lease.id


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as opened:
        put(opened, 5_000)
        yield opened


CHURN_BYTES = 1_500_000  # bytes that a round of ``churn`` writes


def churn(log: Log) -> None:
    put(log, 5_000)
    log.trim(TP, log.end(TP) - 10)


def test_leased_pages_stay_as_they_are(log: Log, tmp_path: Path) -> None:
    (found,), lease = log.lease([(TP, 0, 5_000)], max_blocks=1_000, max_bytes=1 << 30)
    assert lease is not None

    def blocks() -> list[bytes]:
        data = (tmp_path / "data.mdb").read_bytes()
        return [data[position:][:size_bytes] for _, position, size_bytes in found.blocks]

    before = blocks()
    for _ in range(20):
        churn(log)
    assert holds(tmp_path, lease)
    assert blocks() == before
    log.end_lease(lease.id)
    log.end_lease(lease.id)
    assert not holds(tmp_path, lease)
    for _ in range(20):
        churn(log)
    assert blocks() != before


def test_a_lease_ends_by_age_at_a_write(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = given(log)
    churn(log)
    assert holds(tmp_path, lease)
    monkeypatch.setattr(leases, "LEASE_S", -1.0)
    assert holds(tmp_path, lease)
    log.trim(TP, 0)
    assert not holds(tmp_path, lease)


@pytest.mark.parametrize("readers", [1, 60])
def test_a_lease_ends_when_the_store_has_written_much(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    """Its space is reused: the file stays as large, also if the next lease has begun."""
    monkeypatch.setattr(leases, "LEASE_WRITTEN_BYTES", 4 << 20)
    data, sizes = tmp_path / "data.mdb", []
    for _ in range(20):  # until it has its usual size
        churn(log)
    held, begun_bytes = given(log), data.stat().st_size
    for number in range(1, 120):
        churn(log)
        sizes.append(data.stat().st_size)
        if number < readers:
            given(log)
    assert not holds(tmp_path, held)
    # A write ends before it is counted, and LMDB reuses pages two writes after the last read.
    assert begun_bytes < sizes[-1] <= begun_bytes + (4 << 20) + 3 * CHURN_BYTES
    assert sizes[-1] == sizes[-40]


def trickle(log: Log, start: int) -> None:
    """Small batches of 64 partitions, grouped: about 1 MB, and 64 rows."""
    names = [TopicPartition("small", f"{number:032X}") for number in range(64)]
    log.append([RecordBatch.of(tp, start, [bytes(15_000)]) for tp in names])


def test_a_lease_ends_when_small_batches_have_been_written(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after the group was merged."""
    monkeypatch.setattr(leases, "LEASE_WRITTEN_BYTES", 3 << 20)
    held = given(log)
    for start in range(6):
        trickle(log, start)
    assert not holds(tmp_path, held)
    monkeypatch.setattr(append_area, "FAN_IN", 2)
    monkeypatch.setattr(append_area, "MOVED_BYTES", 1 << 20)
    monkeypatch.setattr(append_area, "APPENDED_GROUPS", 1)
    for start in range(6, 8):
        trickle(log, start)
    monkeypatch.setattr(leases, "LEASE_WRITTEN_BYTES", 1 << 20)
    held = given(log)
    clean(log)
    log.trim(TP, 0)
    assert not holds(tmp_path, held)


def test_what_a_log_takes(log: Log, tmp_path: Path) -> None:
    empty = log.space()
    assert empty.file_bytes == (tmp_path / "data.mdb").stat().st_size
    assert empty.leases == empty.oldest_lease_s == 0
    first, second = given(log), given(log)
    for _ in range(10):
        churn(log)
    space = log.space()
    assert space.leases == 2
    assert space.oldest_lease_s > 0
    assert space.file_bytes > empty.file_bytes
    # Everything but ten records is trimmed: free, and still protected by the leases.
    assert space.free_bytes > space.file_bytes * 0.8
    log.end_lease(first.id)
    assert log.space().leases == 1
    log.end_lease(second.id)
    for _ in range(10):
        churn(log)
    assert log.space().file_bytes == space.file_bytes


def test_there_are_only_so_many(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest lease is ended, once it has had time to be useful."""
    monkeypatch.setattr(leases, "FRESH_S", 3600.0)
    oldest, second, *others = [given(log) for _ in range(MAX_LEASES)]
    assert log.lease([(TP, 0, 1)], max_blocks=1, max_bytes=1)[1] is None
    monkeypatch.setattr(leases, "FRESH_S", -1.0)
    newest = given(log)
    assert not holds(tmp_path, oldest)
    assert all(holds(tmp_path, each) for each in (second, *others, newest))
    assert log.space().leases == MAX_LEASES
    given(log)
    assert not holds(tmp_path, second)


def test_closing_ends_leases(log: Log, tmp_path: Path) -> None:
    lease = given(log)
    log.close()
    assert not holds(tmp_path, lease)
    with pytest.raises(ClosedError):
        log.end_lease(lease.id)
    with pytest.raises(ClosedError):
        given(log)


KILLED = """
import sys

from dafka_core.storage import Log
from tests.integration.storage.test_leases import given

lease = given(Log(sys.argv[1]))
print(lease.id, lease.slot, flush=True)
sys.stdin.read()
"""


def test_a_killed_stores_leases_end_before_the_next_one_writes(tmp_path: Path) -> None:
    """In the same file, which readers have open."""
    with child(tmp_path, 1) as process:
        told(process)
    with started([sys.executable, "-c", KILLED, str(tmp_path)]) as store:
        assert store.stdout is not None
        lease_id, slot = store.stdout.readline().split()
        lease = Lease(lease_id, int(slot))
    store.wait()
    assert holds(tmp_path, lease)
    number = (tmp_path / LEASE_FILE).stat().st_ino
    with Log(tmp_path):
        assert not holds(tmp_path, lease)
        assert (tmp_path / LEASE_FILE).stat().st_ino == number


def test_a_directory_without_room_for_them_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LEASE_FILE).mkdir()
    with pytest.raises(StoreError, match=f"file {LEASE_FILE}: Is a directory"):
        Log(tmp_path)
    (tmp_path / LEASE_FILE).rmdir()
    Log(tmp_path).close()
