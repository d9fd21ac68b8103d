"""Notes are on disk with the batch that they came with, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.errors import OffsetConflictError, StoreError
from dafka_core.log_entries import MAX_NOTE_BYTES, MAX_NOTE_NAME_BYTES, NotedBatch, Notes
from dafka_core.records import RecordBatch
from dafka_core.storage import Log
from tests.integration.storage.damage import change
from tests.integration.storage.staged import TP, held, values

LONGEST = "n" * MAX_NOTE_NAME_BYTES


def noted(offset: int, notes: Notes) -> NotedBatch:
    return NotedBatch.with_notes(RecordBatch.of(TP, offset, values(2)), notes)


def test_they_are_there_when_the_log_is_opened_again(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        assert log.notes("") == {}
        log.append([noted(0, {"a/2": b"two", "a/1": b"", "b": bytes(MAX_NOTE_BYTES)})])
        log.append([noted(2, {"a/2": b"new", LONGEST: b"x", "\udcff": b"octet"})])
        log.append([noted(4, {"b": None, "none": None})])
    with Log(tmp_path) as log:
        assert held(log) == values(2) * 3
        assert list(log.notes("a/").items()) == [("a/1", b""), ("a/2", b"new")]
        assert log.notes("a/2") == {"a/2": b"new"}
        assert log.notes(LONGEST) == {LONGEST: b"x"}
        assert log.notes("\udcff") == {"\udcff": b"octet"}
        assert log.notes("none") == {}
        assert log.notes("b") == {}


def test_a_batch_that_is_refused_leaves_none(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([noted(0, {"a": b"1"})])
        with pytest.raises(OffsetConflictError):
            log.append([noted(2, {"a": b"2"}), noted(9, {"a": b"3", "b": b"3"})])
        assert (log.notes("a"), log.notes("b"), log.end(TP)) == ({"a": b"1"}, {}, 2)


def test_one_that_is_damaged_is_found(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([noted(0, {"a": b"1"})])
    change(tmp_path, b"meta", b"note a", b"2" + bytes(8))
    with Log(tmp_path) as log, pytest.raises(StoreError, match="note 'a' does not match"):
        log.notes("")
