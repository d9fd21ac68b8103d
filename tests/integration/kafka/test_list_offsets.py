"""ListOffsets: bounds of partitions, and offsets of times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dafka_core import Store
from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import APIS
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
from dafka_kafka.schemas import ListOffsetsRequest
from tests.integration.kafka.fixed_node import asked, fixed_node

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


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (0, (0, 1_000)),
        (1_000, (0, 1_000)),
        (1_001, (1, 1_001)),
        (1_002, (4, 1_003)),
        (1_003, (4, 1_003)),
        (1_004, NONE),
        (2**62, NONE),
        (2**63 - 1, NONE),
        (EARLIEST, (0, -1)),
        (EARLIEST_LOCAL, (0, -1)),
        (LATEST, (6, -1)),
        (MAX_TIMESTAMP, (4, 1_003)),
        (-7, NONE),
        (-(2**63), NONE),
    ],
)
def test_what_is_asked_for_by_time_or_by_name(log: Log, asked: int, found: FoundOffset) -> None:
    assert offset_of(log, TP, asked) == found


def test_what_is_trimmed_is_not_found(log: Log) -> None:
    log.trim(TP, 2)
    assert offset_of(log, TP, EARLIEST) == (2, -1)
    assert offset_of(log, TP, 0) == (2, 1_001)
    log.trim(TP, 6)
    assert offset_of(log, TP, EARLIEST) == (6, -1)
    assert offset_of(log, TP, MAX_TIMESTAMP) == NONE
    assert offset_of(log, TP, 0) == NONE


@pytest.mark.parametrize("asked", [EARLIEST, LATEST])
def test_a_partition_without_records_begins_and_ends_at_0(log: Log, asked: int) -> None:
    empty = TopicPartition("t", "B")
    assert offset_of(log, empty, asked) == (0, -1)
    assert offset_of(log, empty, 1_000) == NONE
    assert offset_of(log, empty, MAX_TIMESTAMP) == NONE


@pytest.mark.parametrize(
    ("asked", "most", "found"),
    [
        (LATEST, 10, [6, 0]),
        (LATEST, 1, [6]),
        (LATEST, 0, []),
        (LATEST, -1, []),
        (EARLIEST, 10, [0]),
        (1_002, 10, [4, 0]),
        (5_000, 1, [6]),
        (0, 10, [0]),
    ],
)
def test_the_oldest_version_asks_for_several(
    log: Log, asked: int, most: int, found: list[int]
) -> None:
    assert old_style_offsets(log, TP, asked, most) == found


def request(*wanted: tuple[str, int, int], leader_epoch: int = -1) -> Any:
    topic = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        topic(
            name=name,
            partitions=[
                topic.ListOffsetsPartition(
                    partition_index=number,
                    current_leader_epoch=leader_epoch,
                    timestamp=timestamp,
                    max_num_offsets=2,
                )
            ],
        )
        for name, number, timestamp in wanted
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def answered(store: Store, request: Any, version: int) -> list[Any]:
    with fixed_node(store) as node:
        answer = asyncio.run(asked(ListOffsets(node), Api.LIST_OFFSETS, request, version))
    return [partition for topic in answer.topics for partition in topic.partitions]


@pytest.mark.parametrize("version", APIS[Api.LIST_OFFSETS].versions)
def test_each_version_is_answered(store: Store, version: int) -> None:
    store.append_queue.put(RecordBatch.of(TP, 0, [b"a", b"b", b"c"])).result()
    asks = request(("t", 0, LATEST), ("t", 0, EARLIEST), ("t", 0, 1_000), ("t", 1, LATEST))
    found = answered(store, asks, version)
    assert [each.error_code for each in found] == [0, 0, 0, 0]
    if version == 0:
        assert [each.old_style_offsets for each in found] == [[3, 0], [0], [0], [0]]
    else:
        assert [each.offset for each in found] == [3, 0, 0, 0]
        assert [each.timestamp for each in found][:2] == [-1, -1]
        assert found[2].timestamp == store.log.times(TP, 0, 1)[0][1] // 1000


def test_what_cannot_be_answered_is_an_error_of_its_partition(store: Store) -> None:
    asks = request(("t", 9, LATEST), ("t", 77, LATEST), ("u", 0, LATEST), ("t", 0, LATEST))
    codes = [each.error_code for each in answered(store, asks, 5)]
    assert codes == [
        KafkaError.NOT_LEADER_OR_FOLLOWER,
        KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError.NONE,
    ]
    [epoch] = answered(store, request(("t", 0, LATEST), leader_epoch=3), 5)
    assert epoch.error_code == KafkaError.UNKNOWN_LEADER_EPOCH


def test_damage_is_an_error_of_its_partition(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(self: Log, tp: TopicPartition) -> None:
        raise StoreError(self.directory, f"{tp} is damaged")

    monkeypatch.setattr(Log, "info", damaged)
    [found] = answered(store, request(("t", 0, LATEST)), 5)
    assert found.error_code == KafkaError.KAFKA_STORAGE_ERROR
    assert str(TP) in caplog.text
