"""A store answers from its log what it is asked, publishes what is committed, serves no damage."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

from dafka_core import ConfigError, Producer, Reader, Store
from dafka_core.errors import FencedError, OffsetConflictError, StoreError
from dafka_core.model.log_entries import Commit, LogEntry
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.nodes import store_identity
from dafka_core.nodes.store_identity import (
    ADDRESS_FILE,
    ORIGIN_FILE,
    kept_address,
    new_identity,
    restore,
)
from dafka_core.nodes.store_loop import LogWriter, Outcomes
from dafka_core.protocol.beacons import PeerTable
from dafka_core.protocol.messages import Ack, RecordMessage
from dafka_core.storage import Log
from dafka_core.system.files import replace_file
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.nodes.conftest import Produce
from tests.integration.nodes.content import flushed, stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer
from tests.integration.storage.limits import break_heads

TP = TopicPartition("t", "p")


class Told(NamedTuple):
    """The report about a group: its thread, and the end of the log at that time."""

    entries: list[LogEntry]
    outcomes: Outcomes | BaseException
    thread: str
    end: int


class Writing:
    """A log that writes while its gate is open, and a writer of it."""

    def __init__(self, directory: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.log = Log(directory, clock_us=self._clock_us)
        self.told: SimpleQueue[Told] = SimpleQueue()
        self.writer = LogWriter(self.log, self._done)

    def _clock_us(self) -> int:
        assert self.gate.wait(PATIENCE_S)
        return time.time_ns() // 1000

    def _done(self, entries: list[LogEntry], outcomes: Outcomes | BaseException) -> None:
        thread = threading.current_thread().name
        self.told.put(Told(entries, outcomes, thread, self.log.end(TP)))

    def close(self) -> None:
        self.gate.set()
        self.writer.close()
        self.log.close()


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    made = Writing(tmp_path)
    yield made
    made.close()


def batch_of(start: int, end: int) -> RecordBatch:
    return RecordBatch.of(TP, start, [b"%d" % number for number in range(start, end)])


def test_a_reported_group_is_on_disk(writing: Writing) -> None:
    never_staged = Commit((StagedTransaction(*TP, "A" * 32, 0, 1, 0),))
    for start in range(0, 50, 10):
        entries: list[LogEntry] = [batch_of(start, start + 5), never_staged]
        entries.append(batch_of(start + 5, start + 10))
        writing.writer.write(entries)
        told = writing.told.get(timeout=PATIENCE_S)
        assert told.entries is entries
        assert (told.thread, told.end) == ("dafka-log-writer", start + 10)
        assert isinstance(told.outcomes, list)
        first, refused, last = told.outcomes
        assert first is last is None
        assert isinstance(refused, FencedError)


def test_it_is_busy_until_a_group_is_on_disk(writing: Writing) -> None:
    before = writing.writer.busy
    writing.gate.clear()
    writing.writer.write([batch_of(0, 10)])
    assert (before, writing.writer.busy) == (False, True)
    with pytest.raises(AssertionError):
        writing.writer.write([batch_of(10, 20)])
    assert writing.told.empty()
    writing.gate.set()
    wait_until(lambda: not writing.writer.busy)
    assert writing.log.end(TP) == 10


def test_closing_waits_for_the_group_on_its_way(writing: Writing) -> None:
    writing.gate.clear()
    writing.writer.write([batch_of(0, 10)])
    closing = threading.Thread(target=writing.writer.close)
    closing.start()
    assert writing.told.empty()
    writing.gate.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert writing.told.get(block=False).end == 10


def test_after_an_error_no_group_is_written(writing: Writing) -> None:
    entries: list[LogEntry] = [batch_of(0, 10), batch_of(11, 12)]
    writing.writer.write(entries)
    told = writing.told.get(timeout=PATIENCE_S)
    assert told.entries is entries
    assert isinstance(told.outcomes, OffsetConflictError)
    assert told.end == 0
    # It never becomes free again, so it gets no further group.
    assert writing.writer.busy
    writing.writer.close()
    assert writing.told.empty()


def test_a_missing_directory_is_reported_while_idle(writing: Writing) -> None:
    shutil.rmtree(writing.log.directory)
    told = writing.told.get(timeout=PATIENCE_S)
    assert told.entries == []
    assert isinstance(told.outcomes, StoreError)


def test_an_unreadable_log_is_reported_while_idle(tmp_path: Path) -> None:
    """After a write that was not its own."""
    told: SimpleQueue[Outcomes | BaseException] = SimpleQueue()
    with Log(tmp_path) as log:
        log.append([batch_of(0, 10)])
        with closing(LogWriter(log, lambda _, outcomes: told.put(outcomes))):
            break_heads(log)
            with pytest.raises(StoreError, match="the disk is full"):
                log.trim(TP, 5)
            with pytest.raises(StoreError, match="an earlier write failed halfway"):
                log.end(TP)
            assert "restart the store" in str(told.get(timeout=PATIENCE_S))
    with Log(tmp_path) as log:
        assert log.end(TP) == 10


@pytest.fixture
def original(store: Store, produce: Produce) -> Store:
    """A store with ten records."""
    flushed(produce("t"), [b"x"] * 10)
    return store


def copy_directory(directory: Path, copy: Path) -> None:
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.sock"))


def test_a_copy_is_refused_beside_its_original_and_without_it(
    original: Store, tower: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy_directory(original.log.directory, copy)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"a copy of those of store {original.address}.*DIR"):
            Store(copy, tower=tower)
        original.close()


def test_a_restored_copy_is_a_store_of_its_own(
    original: Store, tower: str, produce: Produce, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy_directory(original.log.directory, copy)
    address = restore(copy)
    producer = produce("t", acks=2)
    producer.publish(b"y")
    with Store(copy, tower=tower) as restored, Reader(tower=tower) as reader:
        assert restored.address == address != original.address
        # The producer has counted two stores.
        producer.flush(PATIENCE_S)
        ends = sorted(info.end for info in reader.partitions(["t"], timeout_s=PATIENCE_S))
        assert ends == [1, 10]
        with pytest.raises(StoreError, match="has it open for writing"):
            restore(copy)
    with Store(copy, tower=tower) as restored:
        assert restored.address == address


def test_a_directory_may_be_moved(original: Store, tower: str, tmp_path: Path) -> None:
    original.close()
    moved = tmp_path / "elsewhere"
    original.log.directory.rename(moved)
    with Store(moved, tower=tower) as again:
        assert again.address == original.address


def test_a_directory_without_an_origin_becomes_known_where_it_is(
    original: Store, tower: str, tmp_path: Path
) -> None:
    original.close()
    (original.log.directory / ORIGIN_FILE).unlink()
    with Store(original.log.directory, tower=tower) as again:
        assert again.address == original.address
    copy = tmp_path / "copy"
    copy_directory(original.log.directory, copy)
    with pytest.raises(StoreError, match=r"are a copy of.*another disk, delete file origin"):
        Store(copy, tower=tower)
    shutil.rmtree(original.log.directory)
    (copy / ORIGIN_FILE).unlink()
    with Store(copy, tower=tower) as moved:
        assert moved.address == original.address


@pytest.mark.parametrize(
    "damage",
    [b"", b"\n", b"no uuid", b"A" * 31, b"\xff" * 32, None],
    ids=["empty", "a line", "a text", "cut short", "no text", "missing"],
)
def test_a_lost_address_is_an_error_and_no_new_one_is_made(
    tmp_path: Path, damage: bytes | None
) -> None:
    """A store with another address would be counted, and waited for, beside the one it was."""
    Log(tmp_path).close()
    address = kept_address(tmp_path)
    if damage is None:
        (tmp_path / ADDRESS_FILE).unlink()
    else:
        (tmp_path / ADDRESS_FILE).write_bytes(damage)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"file address .*dafka store restore DIR"):
            kept_address(tmp_path)
    assert restore(tmp_path) == kept_address(tmp_path) != address
    (tmp_path / ADDRESS_FILE).write_text(address)
    assert kept_address(tmp_path) == address


def test_an_address_and_its_origin_are_on_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``replace_file`` leaves a whole file, or none yet, whatever a power cut does."""
    (tmp_path / "data.mdb").touch()

    def cut(*_: object) -> None:
        raise OSError(errno.EIO, "the power is off")

    with monkeypatch.context() as off:
        off.setattr(os, "fsync", cut)
        with pytest.raises(StoreError, match="the power is off"):
            new_identity(tmp_path)
    assert not (tmp_path / ADDRESS_FILE).exists()
    done: list[str] = []

    def replace(path: Path, *how: Any) -> None:
        replace_file(path, *how)
        done.append(path.name)

    monkeypatch.setattr(store_identity, "replace_file", replace)
    address = kept_address(tmp_path)
    assert done == [ADDRESS_FILE, ORIGIN_FILE]
    assert kept_address(tmp_path) == address
    assert len(done) == 2


@pytest.mark.parametrize("has_its_port", [False, True])
def test_a_copy_with_equal_files_ends_and_its_original_continues(
    original: Store,
    tower: str,
    produce: Produce,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_its_port: bool,
) -> None:
    """As that of a whole disk or machine: its files have the same numbers."""
    port = str(original.mesh.beacon.port) if has_its_port else "0"
    wait_until(lambda: original.mesh.peers.table.announced)
    expiry_s = original.mesh.peers.table._expiry_s
    original.mesh.peers.table._announced_at = -expiry_s  # it has been there for some time
    copy = tmp_path / "copy"
    restore_as(original.address, copy)
    note_twin = PeerTable._note_twin

    def note_later(table: PeerTable, now: float, endpoint: str) -> None:
        """The copy ends at once when it hears of its original, which may not know of it yet."""
        if table is original.mesh.peers.table or "another store has its address" in caplog.text:
            note_twin(table, now, endpoint)

    monkeypatch.setattr(PeerTable, "_note_twin", note_later)
    with (
        pytest.raises(StoreError, match=f"store {original.address} is running at tcp://.*DIR"),
        # On a busy machine it may hear of its original late.
        Store(copy, tower=tower, host="127.0.0.2", port=port, peer_expiry_ms=60_000) as clone,
    ):
        assert clone.wait(PATIENCE_S)
    flushed(produce("t"), [b"after"])


def restore_as(address: str, directory: Path) -> None:
    with ForkedCluster() as cluster, Store(directory, tower=cluster.tower):
        pass
    (directory / ADDRESS_FILE).write_text(f"{address}\n")


NOBODY = "127.0.0.1:1:2"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"it cannot be created \(File name too long\)"):
        Store(tmp_path / ("x" * 300), tower=NOBODY)
    for none in ("", "a\0b"):
        with pytest.raises(ConfigError, match=r"option 'directory' = .*: must name a directory"):
            Store(none, tower=NOBODY)


def test_wait_returns_when_it_has_stopped(tower: str, tmp_path: Path) -> None:
    running = Store(tmp_path, tower=tower)
    assert not running.wait(0)
    running.close()
    running.close()
    assert running.wait(0)


def test_it_acknowledges_nothing_once_its_directory_is_gone(
    store: Store, peer: RawPeer, tower: str
) -> None:
    directory = store.log.directory
    peer.send(RecordMessage("t", peer.address, 0, b"0"))
    peer.wait_for(Ack)
    peer.forget_heard()
    shutil.rmtree(directory)
    peer.send(RecordMessage("t", peer.address, 1, b"1"))
    with pytest.raises(StoreError, match="removed, renamed or replaced"):
        store.wait(PATIENCE_S)
    assert peer.messages(Ack) == []
    store.close()
    # Another one may begin at the path, and is right.
    with Store(directory, tower=tower) as second, Producer("t", tower=tower) as producer:
        flushed(producer, values(10))
        assert stored(second, "t", producer.address) == values(10)
