"""The trims of retention in a log."""

from __future__ import annotations

from dafka_core.model.epochs import Epoch
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log

A, B = TopicPartition("t", "A" * 32), TopicPartition("t", "B" * 32)


def test_several_partitions_are_trimmed_in_one_step(store: Log) -> None:
    store.append([RecordBatch.of(tp, 0, [b"x"] * 10) for tp in (A, B)])
    infos = {info.tp: info for info in store.partitions()}
    before = store.changes.number
    assert store.retention.trim_each([(infos[A], 5), (infos[B], 10)]) == [5, 10]
    assert store.changes.number <= before + 2
    assert store.partitions() == [PartitionInfo(*A, 5, 10), PartitionInfo(*B, 10, 10)]


def test_records_of_a_newer_producer_are_not_trimmed_for_those_of_an_older(store: Log) -> None:
    store.append([RecordBatch.of(A, 0, [b"x"] * 10)])
    (seen,) = store.partitions()
    records = RecordBatch.of(A, 10, [b"y"] * 10)
    store.append([RecordBatch(A, 10, records.values, epoch=Epoch(2, 1, 1, 10, 0))])
    assert store.retention.trim_each([(seen, 5)]) == [0]
    assert store.retention.trim_each([(store.partitions()[0], 5)]) == [5]
