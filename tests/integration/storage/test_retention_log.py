"""What retention writes to a log."""

from __future__ import annotations

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
