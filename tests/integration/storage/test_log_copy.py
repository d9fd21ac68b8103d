"""What a backup takes of a log's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.epochs import Epoch
from dafka_core.log_entries import SetAside
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.log_copy import BLOCKS, FACTS, Entry, entries, fact, known_of
from dafka_core.storage.rows import BLOCK_KEY
from tests.integration.storage.changing_log import look
from tests.integration.storage.staged import large, put, values


def test_all_entries_come_between_two_that_say_what_they_are(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100))
        with look(log) as tables:
            first, *rest, last = entries(tables, {}, {"dafka": "1"})
            assert fact(first) == {"dafka": "1", "format": 3, "whole": []}
            assert fact(last) == {"entries": len(rest)}
            assert FACTS not in {each.table for each in rest}
    with pytest.raises(ValueError, match="does not begin, or end"):
        fact(Entry(BLOCKS, b"", memoryview(b"{}")))


def firsts_of_new(log: Log, known: dict[int, object]) -> tuple[list[int], list[int]]:
    with look(log) as tables:
        first, *rest = entries(tables, known, {})  # type: ignore[arg-type]
        found = [BLOCK_KEY.unpack(each.key)[1] for each in rest if each.table == BLOCKS]
        return fact(first)["whole"], found


def test_blocks_that_are_known_do_not_come_again(tmp_path: Path) -> None:
    tp, life = TopicPartition("t", "p"), Epoch(1, 1, 1, 0, 0)
    with Log(tmp_path) as log:
        for start in range(0, 400, 100):
            batch = RecordBatch.of(tp, start, large(100))
            log.append([RecordBatch(tp, start, batch.values, epoch=life)])
        with look(log) as tables:
            known = {each.id: each for each in known_of(tables)}
        for _ in range(6):
            put(log, large(100))
        assert firsts_of_new(log, dict(known)) == ([], [400, 500, 600, 700, 800, 900])
        # A merged block has records that are new, and those that are not.
        while log.merge_step():
            pass
        whole, firsts = firsts_of_new(log, dict(known))
        assert (whole, firsts[0]) == ([], 0)
        # Other records have come in the place of known ones.
        log.write([SetAside(tp, 350)])
        won = RecordBatch.of(tp, 350, large(100))
        log.write([RecordBatch(tp, 350, won.values, epoch=Epoch(2, 2, 1, 350, 0))])
        whole, firsts = firsts_of_new(log, dict(known))
        assert whole == [0]
        assert firsts[0] == 0


def test_small_records_lie_among_the_notes_and_come_with_them(tmp_path: Path) -> None:
    """When they become blocks they are new, whatever the offsets are."""
    with Log(tmp_path) as log:
        put(log, values(5))
        put(log, large(100))
        put(log, values(5))
        with look(log) as tables:
            (known,) = known_of(tables)
        assert known.end == 0
        assert firsts_of_new(log, {known.id: known}) == ([], [5])
