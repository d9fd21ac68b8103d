"""Blocks of many ranges that one lease covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log

A, B, C, NONE = (TopicPartition("t", name) for name in "ABCN")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    for tp in (A, B, C):
        for start in (0, 4):
            log.append([RecordBatch.of(tp, start, [b"%d" % start * 100_000] * 4)])
    return log


def test_one_lease_covers_many_ranges(log: Log) -> None:
    with log:
        wanted = [(A, 0, 8), (NONE, 0, 1), (B, 5, 6), (C, 2, 2)]
        found, lease = log.lease_many(wanted, max_blocks=100, max_bytes=1 << 30)
        assert lease is not None
        assert [placed.held for placed in found] == [
            PartitionInfo(*A, 0, 8),
            None,
            PartitionInfo(*B, 0, 8),
            PartitionInfo(*C, 0, 8),
        ]
        assert [[place.first for place in placed.blocks] for placed in found] == [
            [0, 4],
            [],
            [4],
            [],
        ]
        log.end_lease(lease.id)


@pytest.mark.parametrize(
    ("max_blocks", "max_bytes", "blocks"),
    [
        (1, 1 << 30, [[0]]),
        (2, 1 << 30, [[0, 4]]),
        (3, 1 << 30, [[0, 4], [0]]),
        (100, 1, [[0]]),
        (100, 900_000, [[0, 4], [0]]),
    ],
)
def test_a_lease_has_its_limits(
    log: Log, max_blocks: int, max_bytes: int, blocks: list[list[int]]
) -> None:
    with log:
        wanted = [(tp, 0, 8) for tp in (A, B, C)]
        found, lease = log.lease_many(wanted, max_blocks=max_blocks, max_bytes=max_bytes)
        assert [[place.first for place in placed.blocks] for placed in found] == blocks
        assert lease is not None
