"""A gateway with Produce and fixed partitions, and a client of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dafka_core import Store
from dafka_core.system.hosts import HostPort, listen
from dafka_kafka.api import Api
from dafka_kafka.gateways import GatewayInfo
from dafka_kafka.produce import Produce
from dafka_kafka.registry_table import NumberedPartition
from dafka_kafka.server import BACKLOG, Server
from tests.integration.kafka.fixed_node import ELSEWHERE, FixedNumbers, fixed_node
from tests.integration.kafka.one_request import Connection
from tests.unit.kafka.messages import rows

VERSION = 8
PRODUCERS, OTHERS = 4, 5
"""The number of a Dafka producer's partition, and one with another gateway as owner."""


@contextmanager
def produce_server(store: Store) -> Iterator[HostPort]:
    """Serve Produce during the context; yield the address.

    Topic t has four partitions that the store hosts, a Dafka producer's, and another gateway's.
    """
    listener = listen(HostPort("127.0.0.1", 0), BACKLOG)
    own = GatewayInfo(store.address, 1, "127.0.0.1", 9092)
    gateways = [*[store.address] * 5, ELSEWHERE.address]
    numbers = FixedNumbers(
        *(
            NumberedPartition("t", at, "ABCDEF"[at] * 32, gateway, at != PRODUCERS)
            for at, gateway in enumerate(gateways)
        )
    )
    with fixed_node(store, numbers, own) as node:
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


class ProduceClient(Connection):
    """A connection that sends records and receives the answers in order."""

    def send(
        self,
        parts: Mapping[tuple[str, int], bytes | None],
        *,
        version: int = VERSION,
        **fields: Any,
    ) -> None:
        """Send records for partitions without waiting."""
        topics = [
            {"name": topic, "partition_data": [{"index": number, "records": octets}]}
            for (topic, number), octets in parts.items()
        ]
        fields = {"acks": 1, "timeout_ms": 30_000, "transactional_id": None} | fields
        self.send_request(Api.PRODUCE, version, topic_data=topics, **fields)

    def receive(self, version: int = VERSION) -> list[Answer]:
        """Receive the next response, by partition."""
        response = self.receive_response(Api.PRODUCE, version)
        fields = ("error_code", "base_offset")
        return [Answer(*each) for each in rows(response, "responses.partition_responses", *fields)]

    def ask(self, parts: Mapping[tuple[str, int], bytes | None], **named: Any) -> list[Answer]:
        self.send(parts, **named)
        return self.receive(named.get("version", VERSION))

    def init_producer_id(self, transactional_id: str | None = None) -> Any:
        asked = {"transactional_id": transactional_id, "transaction_timeout_ms": 1000}
        self.send_request(Api.INIT_PRODUCER_ID, 1, **asked)
        return self.receive_response(Api.INIT_PRODUCER_ID, 1)
