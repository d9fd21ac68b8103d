"""Retention examines blocks once, and again only if their partition has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log, retention
from dafka_core.storage.retention import HeldBlocks

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as opened:
        opened.append([RecordBatch.of(tp, 0, [b"x" * 30_000] * 4) for tp in (A, B)])
        yield opened


def sizes(blocks: HeldBlocks, log: Log) -> tuple[dict[TopicPartition, int], int]:
    """Return the size of each partition, and the number of steps that found it."""
    looking, steps = blocks.look_at(log.partitions()), 0
    while True:
        try:
            next(looking)
        except StopIteration as end:
            return {tp: sum(b.size_bytes for b in held) for tp, held in end.value.items()}, steps
        steps += 1


def test_unchanged_partitions_are_not_examined_again(log: Log) -> None:
    blocks = HeldBlocks(log)
    first, steps = sizes(blocks, log)
    assert steps == 2
    assert all(120_000 <= size < 130_000 for size in first.values())
    log.append([RecordBatch.of(B, 4, [b"x" * 30_000] * 4)])
    second, steps = sizes(blocks, log)
    assert steps == 1
    assert second[A] == first[A]
    assert 240_000 <= second[B] < 260_000
    blocks.keep_only({A})
    assert blocks.found([A, B]).keys() == {A}
    assert blocks[A][0].end == 4


def test_many_bytes_are_examined_in_steps(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([RecordBatch.of(A, end, [b"x" * 30_000] * 4) for end in (4,)])
    log.append([RecordBatch.of(A, end, [b"x" * 30_000] * 4) for end in (8,)])
    monkeypatch.setattr(retention, "STEP_BYTES", 1)
    blocks = HeldBlocks(log)
    found, steps = sizes(blocks, log)
    assert steps > 2
    assert found[A] > 2 * found[B]


def test_an_unknown_partition_has_no_blocks(log: Log) -> None:
    blocks = HeldBlocks(log)
    assert list(blocks.look(TopicPartition("t", "C"))) == []
    assert blocks.found([TopicPartition("t", "C")]) == {}
