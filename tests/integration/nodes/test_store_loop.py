"""A store answers from its log what it is asked, publishes what is committed, serves no damage."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from dafka_core.errors import FencedError, OffsetConflictError, StoreError
from dafka_core.model.log_entries import Commit, LogEntry
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.nodes.store_loop import LogWriter, Outcomes
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S
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


def test_a_missing_directory_is_reported_while_idle(
    writing: Writing,
) -> None:
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
