"""Metrics and health findings of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dafka_core.ops.findings import LIFE, Finding, ok, problem
from dafka_core.ops.metric_declarations import Metric, counter, gauge
from dafka_core.system.hosts import HostPort

if TYPE_CHECKING:
    from dafka_kafka.server import Server

TABLE: Final[tuple[Metric, ...]] = (
    gauge("kafka_connections", "server.connection_count", "connected clients"),
    counter(
        "kafka_requests",
        lambda gateway: _requests(gateway.server),
        "their requests, by Kafka's name",
        "api",
    ),
    counter(
        "kafka_complaints",
        "server.complaints.counts",
        "failed requests, refused records and ended connections",
        "reason",
    ),
    gauge(
        "kafka_in_flight_bytes",
        "server.room.taken_bytes",
        "requests and responses in memory; at the limit clients wait",
    ),
    gauge(
        "kafka_in_flight_limit_bytes",
        "server.room.size_bytes",
        "requests and responses in memory; at the limit clients wait",
    ),
)


def _requests(server: Server) -> dict[str, int]:
    from dafka_kafka.api import Api  # noqa: PLC0415 -- it is loaded where there is one

    return {api.name.lower(): server.requests.counts[api] for api in Api}


def findings(server: Server, listens: HostPort) -> Iterator[Finding]:
    """Yield whether the gateway serves."""
    if not server.loop.is_running():
        yield problem(LIFE, "the gateway has ended", "start it again")
    else:
        count = server.connection_count
        yield ok("gateway", f"{count} of Kafka's clients are connected at {listens}")
