"""Metrics and health findings of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dafka_core.ops.findings import LIFE, Finding, ok, problem
from dafka_core.ops.metric_declarations import Metric, Sample, counter, gauge
from dafka_core.system.hosts import HostPort

if TYPE_CHECKING:
    from dafka_kafka.server import Server

GATEWAY: Final = ("gateway",)

CONNECTIONS: Final = gauge(
    "kafka_connections", "connections", GATEWAY, "clients that are connected"
)
REQUESTS: Final = counter(
    "kafka_requests", "requests", GATEWAY, "their requests, by Kafka's name of the kind", "api"
)
REFUSED: Final = counter(
    "kafka_complaints",
    "requests",
    GATEWAY,
    "requests that failed and connections that were ended, by what was wrong",
    "reason",
)
IN_FLIGHT: Final = gauge(
    "kafka_in_flight_bytes", "bytes", GATEWAY, "requests and responses in memory"
)
ROOM: Final = gauge(
    "kafka_in_flight_limit_bytes", "bytes", GATEWAY, "the most there may be; then clients wait"
)

TABLE: Final[tuple[Metric, ...]] = (CONNECTIONS, REQUESTS, REFUSED, IN_FLIGHT, ROOM)


def samples(server: Server) -> Iterator[Sample]:
    """Yield the values of all metrics."""
    from dafka_kafka.api import Api  # noqa: PLC0415 -- it is loaded where there is one

    yield Sample(CONNECTIONS, server.connection_count)
    counts = server.requests.counts
    for api in Api:
        yield Sample(REQUESTS, counts[api], (api.name.lower(),))
    for reason, count in [*server.complaints.counts.items()]:
        yield Sample(REFUSED, count, (reason,))
    yield Sample(IN_FLIGHT, server.room.taken_bytes)
    yield Sample(ROOM, server.room.size_bytes)


def findings(server: Server, listens: HostPort) -> Iterator[Finding]:
    """Yield whether the gateway serves."""
    if not server.loop.is_running():
        yield problem(LIFE, "the gateway has ended", "start it again")
    else:
        count = server.connection_count
        yield ok("gateway", f"{count} of Kafka's clients are connected at {listens}")
