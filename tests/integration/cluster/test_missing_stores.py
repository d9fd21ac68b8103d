"""Queries while a store is away that has the newest records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core import ConfigError, Producer, Store, Tower
from dafka_core.records import KnownStore, TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.cluster import connections
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.stream_reader import DafkaStreamReader
from tests.memory_reader import MemoryReader

ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
TP = TopicPartition("t", "P")


class Stores:
    """Two stores, of which the second one alone has the last 100 of 400 records, and is away."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.tower = stack.enter_context(Tower(**ANY_PORTS)).tower
        self._stack = stack
        self._directory = directory
        first, second = self.start("1"), self.start("2")
        self.address = second.address
        with Producer("t", tower=self.tower) as producer:
            tp = TopicPartition("t", producer.address)
            producer.publish_many([b"x"] * 300)
            logs = first.log, second.log
            wait_until(lambda: all(log.end(tp) == 300 for log in logs), "what both have")
            first.close()
            producer.publish_many([b"x"] * 100)
        second.close()
        self.start("1")

    def start(self, name: str) -> Store:
        path = self._directory / name
        return self._stack.enter_context(Store(path, tower=self.tower))

    def planned(self, **given: str) -> int:
        """How many rows a batch is planned to read."""
        options = SourceOptions.of({"tower": self.tower, "subscribe": "t", **given}).for_batch()
        tasks = DafkaBatchReader(full(), options, connections.lend).partitions()
        return sum(task.end - task.start for task in tasks if isinstance(task, OffsetRange))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack, tmp_path)


def test_a_batch_names_the_store_that_is_away(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        assert stores.planned() == 300
    assert f"store {stores.address} (tcp://127.0.0.1:" in caplog.text
    assert "is away: what only it has is not in this result" in caplog.text
    for least in ("all", "2"):
        with pytest.raises(ConfigError, match=f"'minStores' = .*: 1 store.*{stores.address}"):
            stores.planned(minstores=least)
    assert stores.planned(minstores="1") == 300
    back = stores.start("2")
    caplog.clear()
    wait_until(lambda: stores.planned() == 400, "all that was written")
    caplog.clear()
    assert stores.planned(minstores="all") == 400
    assert back.address not in caplog.text


def test_a_stream_says_so_once_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    mesh = MemoryReader()
    mesh.add(TP, 5)
    mesh.away = [KnownStore("S" * 32, "tcp://h:1", 1)]
    options = SourceOptions.of({"subscribe": "t", "fetch": "mesh"})
    reader = DafkaStreamReader(full(), options, mesh.connect)
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        start = reader.initialOffset()
        for _ in range(3):
            start = reader.latestOffset(start, ReadAllAvailable())
    assert caplog.text.count(f"store {'S' * 32} (tcp://h:1") == 1
    strict = SourceOptions.of({"subscribe": "t", "fetch": "mesh", "minstores": "all"})
    reader = DafkaStreamReader(full(), strict, mesh.connect)
    with pytest.raises(ConfigError, match="away: store SSSS"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
