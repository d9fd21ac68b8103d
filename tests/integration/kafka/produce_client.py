"""A gateway with Produce and fixed partitions, and a client of it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dafka_core import Store
from dafka_core.model.records import TopicPartition
from dafka_core.system.closing import Closing
from dafka_core.system.hosts import HostPort, listen
from dafka_kafka.api import Api
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.gateways import GatewayInfo, Gateways
from dafka_kafka.options import KafkaOptions
from dafka_kafka.partition_registry import PartitionRegistry
from dafka_kafka.produce import Produce
from dafka_kafka.registry_table import NumberedPartition
from dafka_kafka.schemas import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from dafka_kafka.server import BACKLOG, Server

VERSION = 8
PRODUCERS, OTHERS = 4, 5
"""The number of a Dafka producer's partition, and one with another gateway as owner."""

_Topic = ProduceRequest.TopicProduceData


class FixedNumbers:
    """Topic t: four partitions hosted by the store, a Dafka producer's, another gateway's."""

    def __init__(self, store: Store) -> None:
        gateways = [*[store.address] * 5, "E" * 32]
        self._found = [
            NumberedPartition("t", at, "ABCDEF"[at] * 32, gateway, at != PRODUCERS)
            for at, gateway in enumerate(gateways)
        ]

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        found = self.partitions(topic)
        return found[number] if 0 <= number < len(found) else None

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        return self._found if topic == "t" else ()

    def number(self, tp: TopicPartition) -> int | None:
        return next((each.number for each in self._found if each.tp == tp), None)

    def deleted_end(self, tp: TopicPartition) -> int:
        return 0

    def configs(self, topic: str) -> Mapping[str, int]:
        return {}


class FixedGateways:
    def __init__(self, store: Store) -> None:
        self.own = GatewayInfo(store.address, 1, "127.0.0.1", 9092)


@contextmanager
def produce_server(store: Store) -> Iterator[HostPort]:
    """Serve Produce during the context; yield the address."""
    listener = listen(HostPort("127.0.0.1", 0), BACKLOG)
    with ThreadPoolExecutor(4) as threads:
        node = GatewayNode(
            store,
            KafkaOptions(),
            cast("PartitionRegistry", FixedNumbers(store)),
            cast("Gateways", FixedGateways(store)),
            threads,
        )
        server = Server(listener, [Produce(node)])
        try:
            server.start()
            yield HostPort("127.0.0.1", listener.getsockname()[1])
        finally:
            server.close()


class Answer(NamedTuple):
    """The response for a partition."""

    error: int
    offset: int


class ProduceClient(Closing):
    """A connection whose requests are answered in order."""

    def __init__(self, where: HostPort) -> None:
        self._socket = socket.create_connection(where, timeout=60)
        self._reader = self._socket.makefile("rb")
        self._correlation_id = 0

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def send(
        self,
        parts: Mapping[tuple[str, int], bytes | None],
        *,
        version: int = VERSION,
        acks: int = 1,
        timeout_ms: int = 30_000,
        transactional_id: str | None = None,
    ) -> None:
        """Send records for partitions without waiting."""
        topics = [
            _Topic(
                name=topic,
                partition_data=[_Topic.PartitionProduceData(index=number, records=octets)],
            )
            for (topic, number), octets in parts.items()
        ]
        request = ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics
        )
        self._send(Api.PRODUCE, version, ProduceRequest.encode(request, version=version))

    def receive(self, version: int = VERSION) -> list[Answer]:
        """Receive the next response, by partition."""
        response = ProduceResponse.decode(self._receive(), version=version)
        return [
            Answer(part.error_code, part.base_offset)
            for topic in response.responses
            for part in topic.partition_responses
        ]

    def ask(self, parts: Mapping[tuple[str, int], bytes | None], **named: Any) -> list[Answer]:
        """Send records and receive the response."""
        self.send(parts, **named)
        return self.receive(named.get("version", VERSION))

    def init_producer_id(self, transactional_id: str | None = None) -> Any:
        """Send InitProducerId and receive the response."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=1000
        )
        octets = InitProducerIdRequest.encode(request, version=1)
        self._send(Api.INIT_PRODUCER_ID, 1, octets)
        return InitProducerIdResponse.decode(self._receive(), version=1)

    def is_ended(self) -> bool:
        """Return whether the gateway closes the connection without a response."""
        return self._reader.read(1) == b""

    def _send(self, api: Api, version: int, body: bytes) -> None:
        self._correlation_id += 1
        head = struct.pack(">hhih", api, version, self._correlation_id, -1)
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._reader.read(4))
        return self._reader.read(size)[4:]


def batch(
    values: Sequence[bytes],
    *,
    key: bytes | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    transactional: bool = False,
    timestamp: int = 1_700_000_000_000,
) -> bytes:
    """Encode a record batch by aiokafka; ``producer`` is its id, epoch and sequence."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, *producer, 1 << 30)
    for at, value in enumerate(values):
        assert builder.append(at, timestamp + at, key, value, []) is not None
    return bytes(builder.build())
