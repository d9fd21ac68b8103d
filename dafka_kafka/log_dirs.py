"""DescribeLogDirs: the disk usage of partitions at this gateway's store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any, Final

from dafka_core.errors import DafkaError
from dafka_core.storage.snapshot import Snapshot
from dafka_kafka.api import (
    Answer,
    Api,
    Client,
    Feature,
    Response,
    encoded,
    on_cluster,
    serves,
)
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.registry_table import NumberedPartition
from dafka_kafka.users import Operation

MOST_AT_ONCE: Final = 1_000
"""Partitions read in one snapshot: while one is open, LMDB reuses no page."""


class LogDirs(Feature):
    """Reports partitions' sizes, estimated from a few blocks each."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node

    @serves(Api.DESCRIBE_LOG_DIRS, range(6), on_cluster(Operation.DESCRIBE))
    async def _describe(self, request: Any, client: Client) -> Response:
        def answer() -> bytearray:
            found = {"results": [self._directory(list(self._asked(request.topics)))]}
            return encoded(Api.DESCRIBE_LOG_DIRS, client.version, found)

        return await self._node.in_thread(answer)

    def _asked(self, topics: Iterable[Any] | None) -> Iterable[NumberedPartition]:
        """Return the requested partitions that exist; all without topics."""
        registry = self._node.registry
        if topics is None:
            for topic in sorted(registry.table.topics):
                yield from registry.table.partitions(topic)
            return
        for each in topics:
            for number in each.partitions:
                if (partition := registry.table.get(each.topic, number)) is not None:
                    yield partition

    def _directory(self, asked: list[NumberedPartition]) -> Answer:
        log = self._node.store.log
        sizes: dict[NumberedPartition, int] = {}
        error = KafkaError.NONE
        total = usable = -1
        try:
            for start in range(0, len(asked), MOST_AT_ONCE):
                some = asked[start : start + MOST_AT_ONCE]
                with log.snapshot() as snapshot:
                    sizes |= {each: _size(snapshot, each) for each in some}
            total, _, usable = shutil.disk_usage(log.directory)
        except (DafkaError, OSError):
            error = KafkaError.KAFKA_STORAGE_ERROR
        topics: dict[str, list[Answer]] = {}
        for each, size in sizes.items():
            found = {"partition_index": each.number, "partition_size": size}
            topics.setdefault(each.topic, []).append(found)
        return {
            "error_code": error,
            "log_dir": str(log.directory.absolute()),
            "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
            "total_bytes": total,
            "usable_bytes": usable,
        }


def _size(snapshot: Snapshot, partition: NumberedPartition) -> int:
    info = snapshot.info(partition.tp)
    sizes = info and snapshot.record_sizes(partition.tp, info.earliest, info.end)
    if info is None or not sizes:
        return 0
    return (info.end - info.earliest) * sum(sizes) // len(sizes)
