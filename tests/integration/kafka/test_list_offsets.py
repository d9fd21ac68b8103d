"""ListOffsets: bounds of partitions, and offsets of times."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafka_core import Store
from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.snapshot import Snapshot
from dafka_kafka import list_offsets
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    FoundOffset,
    ListOffsets,
    offset_of,
    old_style_offsets,
)
from tests.integration.kafka.fixed_node import asked, fixed_node
from tests.unit.kafka.messages import rows, versions

TP = TopicPartition("t", "A")
NONE = FoundOffset(-1, -1)
TIMES_US = [1_000_999, 1_001_000, 1_001_001, 1_001_999, 1_003_000, 1_003_000]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    times = np.array([(1, time_us) for time_us in TIMES_US], np.int64)
    batch = RecordBatch.of(TP, 0, [b"%d" % number for number in range(len(times))])
    with Log(tmp_path, clock_us=lambda: 2_000_000) as made:
        made.append([RecordBatch(TP, 0, batch.values, times=times)])
        yield made


def test_what_is_asked_for_by_time_or_by_name(log: Log) -> None:
    expected = {
        **dict.fromkeys((0, 1_000), (0, 1_000)),
        1_001: (1, 1_001),
        **dict.fromkeys((1_002, 1_003, MAX_TIMESTAMP), (4, 1_003)),
        **dict.fromkeys((1_004, 2**62, 2**63 - 1, -7, -(2**63)), NONE),
        **dict.fromkeys((EARLIEST, EARLIEST_LOCAL), (0, -1)),
        LATEST: (6, -1),
    }
    assert {each: offset_of(log, TP, 6, each) for each in expected} == expected
    oldest = {(LATEST, 10): [6, 0], (LATEST, 1): [6], (LATEST, 0): [], (LATEST, -1): []}
    oldest |= {(EARLIEST, 10): [0], (1_002, 10): [4, 0], (5_000, 1): [6], (0, 10): [0]}
    assert {each: old_style_offsets(log, TP, 6, *each) for each in oldest} == oldest
    empty = TopicPartition("t", "B")
    found = [offset_of(log, empty, 0, each) for each in (EARLIEST, LATEST, 1_000, MAX_TIMESTAMP)]
    assert found == [(0, -1), (0, -1), NONE, NONE]


def test_what_is_trimmed_is_not_found(log: Log) -> None:
    log.trim(TP, 2)
    assert offset_of(log, TP, 6, EARLIEST) == (2, -1)
    assert offset_of(log, TP, 6, 0) == (2, 1_001)
    log.trim(TP, 6)
    assert offset_of(log, TP, 6, EARLIEST) == (6, -1)
    assert [offset_of(log, TP, 6, each) for each in (MAX_TIMESTAMP, 0)] == [NONE, NONE]


def test_what_is_beyond_the_high_watermark_is_not_found(log: Log) -> None:
    expected = {
        LATEST: (3, -1),
        EARLIEST: (0, -1),
        MAX_TIMESTAMP: (2, 1_001),
        1_001: (1, 1_001),
        1_002: NONE,
    }
    assert {each: offset_of(log, TP, 3, each) for each in expected} == expected
    assert offset_of(log, TP, 0, MAX_TIMESTAMP) == NONE
    assert old_style_offsets(log, TP, 3, 1_002, 10) == [3, 0]
    log.trim(TP, 4)
    assert offset_of(log, TP, 3, LATEST) == (4, -1)


@pytest.mark.parametrize("seed", range(10))
def test_the_greatest_time_is_found_without_reading_all(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "MAX_BLOCK_RECORDS", 16)
    some, read, spans = random.Random(seed), Snapshot.read, list[tuple[int, int]]()

    def noted(self: Snapshot, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        spans.append((start, end))
        return read(self, tp, start, end)

    monkeypatch.setattr(Snapshot, "read", noted)
    is_ascending, times = seed % 2, list[int]()
    with Log(tmp_path, clock_us=lambda: 2_000_000_000) as made:
        for _ in range(10):
            count, start = some.randrange(1, 30), len(times)
            times += (start * 10_000 * is_ascending + some.randrange(10**6) for _ in range(count))
            batch = RecordBatch.of(TP, start, [b""] * count)
            runs = np.array([(1, each) for each in times[start:]], np.int64)
            made.append([RecordBatch(TP, start, batch.values, times=runs)])
        for first in (0, some.randrange(len(times))):
            made.trim(TP, first)
            for end in range(first + 1, len(times)):
                spans.clear()
                latest = max(times[first:end])
                expected = times.index(latest, first, end), latest // 1_000
                assert offset_of(made, TP, end, MAX_TIMESTAMP) == expected
                assert all(end - start <= 16 for start, end in spans)
                assert len(spans) <= (100 if first or not is_ascending else 5)


def answered(
    store: Store, version: int, *wanted: tuple[str, int, int], leader_epoch: int = -1
) -> list[Any]:
    """Ask for topics, numbers and times; return errors, offsets, times and old offsets."""
    of_all = {"current_leader_epoch": leader_epoch, "max_num_offsets": 2}
    topics = [
        {"name": name, "partitions": [{"partition_index": at, "timestamp": time_ms} | of_all]}
        for name, at, time_ms in wanted
    ]
    with fixed_node(store) as node:
        work = asked(ListOffsets(node), Api.LIST_OFFSETS, version, replica_id=-1, topics=topics)
        answer = asyncio.run(work)
    named = ("error_code", "offset", "timestamp", "old_style_offsets")
    return rows(answer, "topics.partitions", *named)


def test_each_version_is_answered(store: Store) -> None:
    store.append_queue.put(RecordBatch.of(TP, 0, [b"a", b"b", b"c"])).result()
    wanted = ("t", 0, LATEST), ("t", 0, EARLIEST), ("t", 0, 1_000), ("t", 1, LATEST)
    time_ms = store.log.times(TP, 0, 1)[0][1] // 1000
    old = [(0, -1, -1, each) for each in ([3, 0], [0], [0], [0])]
    new: list[Any] = [(0, 3, -1, []), (0, 0, -1, []), (0, 0, time_ms, []), (0, 0, -1, [])]
    for version in versions(Api.LIST_OFFSETS):
        assert answered(store, version, *wanted) == (new if version else old)
        ((error, *_),) = answered(store, version, ("t", 0, MAX_TIMESTAMP))
        assert error == (0 if version >= 7 else KafkaError.UNSUPPORTED_VERSION)


def test_what_cannot_be_answered_is_an_error_of_its_partition(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [("t", 9, LATEST), ("t", 77, LATEST), ("u", 0, LATEST), ("t", 0, LATEST)]
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    errors = [KafkaError.NOT_LEADER_OR_FOLLOWER, unknown, unknown, 0]
    assert [each[0] for each in answered(store, 5, *wanted)] == errors
    ((error, *_),) = answered(store, 5, wanted[-1], leader_epoch=3)
    assert error == KafkaError.UNKNOWN_LEADER_EPOCH

    def damaged(self: Log, tp: TopicPartition) -> None:
        raise StoreError(self.directory, f"{tp} is damaged")

    monkeypatch.setattr(Log, "info", damaged)
    ((error, *_),) = answered(store, 5, wanted[-1])
    assert error == KafkaError.KAFKA_STORAGE_ERROR
    assert str(TP) in caplog.text
