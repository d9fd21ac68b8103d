"""Stores on disk, each with what of a gateway gives numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dafka_core import Store
from dafka_core.testing import wait_until
from dafka_kafka.gateways import Gateways
from dafka_kafka.partition_registry import PartitionRegistry

ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
OFTEN: dict[str, Any] = {
    "beacon_interval_ms": 200,
    "peer_expiry_ms": 1_500,
    "sync_interval_ms": 200,
}
PATIENCE_S = 30.0


class Numbering:
    """A store with what of a gateway gives numbers."""

    def __init__(self, directory: Path, tower: str, port: int, **options: Any) -> None:
        self.store = Store(directory, tower=tower, **OFTEN | options)
        self.gateways = Gateways(self.store, "127.0.0.1", port)
        self.registry = PartitionRegistry(self.store, self.gateways)
        self.gateways.announce()
        self.registry.start()

    def create(self, topic: str, count: int, *, new: bool = False) -> None:
        asyncio.run(self.registry.create(topic, count, new=new))

    def extend(self, topic: str, count: int) -> None:
        asyncio.run(self.registry.extend(topic, count))

    def names(self, topic: str) -> list[str]:
        return [each.address for each in self.registry.partitions(topic)]

    def close(self) -> None:
        self.registry.close()
        self.store.close()


def meet(*all_: Numbering) -> None:
    wait_until(lambda: all(len(each.store.known.here) == len(all_) - 1 for each in all_))


def agree(topic: str, count: int, *all_: Numbering) -> list[str]:
    wait_until(lambda: all(len(each.names(topic)) >= count for each in all_))
    found = all_[0].names(topic)
    assert all(each.names(topic) == found for each in all_)
    return found
