"""A partition's copy: what may be added to it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster, Reader
from dafka_core.archive.record_files import SCHEMA
from dafka_core.flight.retention_actions import Trimmed, TrimRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.keys.key_files import own_prefix
from dafka_core.records import TopicPartition
from dafka_core.security_options import SecurityOptions
from dafka_spark.jobs.support.mirrored_partition import MirroredPartition, MirrorError
from tests.forked import ForkedCluster


def records(start: int, *values: bytes) -> pa.RecordBatch:
    rows = [
        {"value": value, "partition": "", "offset": start + number, "timestamp": 1_000_000}
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_what_does_not_go_on_with_the_copy_is_refused(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = TopicPartition("copied", "A" * 32)

    def add(start: int, *values: bytes) -> int:
        with MirroredPartition(cluster.tower, tp, 1, {}) as copied:
            copied.add(records(start, *values))
            return copied.finish()

    with pytest.raises(MirrorError, match="next record is of offset 5, and the copy ends at 0"):
        add(5, b"x")
    assert add(0, b"0", b"1", b"2") == 3
    assert add(1, b"1", b"2", b"3") == 1
    with pytest.raises(MirrorError, match="has other records from offset 1"):
        add(1, b"1", b"other")
    assert add(4, b"4") == 1
    with StoreClient(StoreLocation("", cluster.locations(0))) as store:
        store.ask(Trimmed, 20, TrimRequest(((*tp, 2),)))
    assert add(0, b"gone", b"gone", b"2", b"3", b"4", b"5") == 1
    assert add(0, b"gone") == 0
    monkeypatch.setattr(Reader, "partitions", lambda *_, **__: [])  # its stores are away by now
    with pytest.raises(MirrorError, match="has 6 records already, and no store there says so"):
        add(0, b"gone")


def test_a_copy_in_a_cluster_with_keys_is_gone_on_with() -> None:
    with ForkedCluster(keys=True) as there:
        keys = there.key()
        tp = TopicPartition("copied", own_prefix(SecurityOptions.build(keys)).ljust(32, "A"))
        for values, count in (((b"0", b"1"), 2), ((b"0", b"1", b"2"), 1)):
            with MirroredPartition(there.tower, tp, 1, keys) as copied:
                copied.add(records(0, *values))
                assert copied.finish() == count


def test_a_partition_of_a_c_producer_is_named(cluster: EmbeddedCluster) -> None:
    with pytest.raises(MirrorError, match="of a C producer"):
        MirroredPartition(cluster.tower, TopicPartition("copied", "c-name"), 1, {})
