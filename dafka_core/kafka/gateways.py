"""The gateways of a cluster."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from dafka_core.kafka.kafka_options import HostPort
from dafka_core.kafka.partition_numbers import NumberedPartition


class GatewayInfo(NamedTuple):
    """A gateway: its store's address, what Kafka calls a broker's id, and where clients connect."""

    address: str
    node_id: int
    host: str
    port: int


class Gateways:
    """The gateways that this one knows, itself among them."""

    def __init__(self, store: str, advertised: HostPort) -> None:
        self.own = GatewayInfo(store, zlib.crc32(store.encode()) & 0x7FFFFFFF, *advertised)

    def live(self) -> Sequence[GatewayInfo]:
        """Those that are there now."""
        return (self.own,)

    def leader(self, partition: NumberedPartition) -> GatewayInfo:
        """The one that clients are sent to for this partition."""
        return self.own
