"""The options of a gateway, and the limits of what its clients may ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dafka_core.config.options import Options, option
from dafka_core.errors import ConfigError
from dafka_core.system.hosts import host_port

DEFAULT_PORT: Final = 9092


def _parse(value: Any) -> str:
    return str(host_port(str(value).strip(), DEFAULT_PORT))


@dataclass(frozen=True)
class KafkaOptions(Options):
    """What a gateway takes."""

    MAIN = frozenset({"listen", "advertised", "num_partitions"})

    listen: str = option(
        f"127.0.0.1:{DEFAULT_PORT}",
        "where Kafka's clients connect; port 0 lets the system choose",
        kind="HOST[:PORT]",
        parse=_parse,
    )
    advertised: str | None = option(
        None,
        "where clients are told to connect, if not at `listen`: needed behind address translation, "
        "and when it listens at all of a machine's addresses. Port 0 is that of `listen`",
        kind="HOST[:PORT]",
        parse=_parse,
    )
    kafka_users: str = option(
        "",
        "a file with the users that clients of Kafka must be one of, as `dafka kafka-user` writes "
        "it: they use SASL with SCRAM-SHA-256, SCRAM-SHA-512, or PLAIN where nobody can listen",
        kind="FILE",
    )
    kafka_tls_certificate: str = option(
        "",
        "with it clients of Kafka connect by TLS: a PEM file with the certificate, and those "
        "between it and its root",
        kind="FILE",
    )
    kafka_tls_key: str = option(
        "", "the certificate's key, a PEM file without a password", kind="FILE"
    )
    auto_create_topics: bool = option(
        True, "a topic that a client of Kafka asks for, and that is not there, is made"
    )
    delete_topics: bool = option(
        True, "clients of Kafka may delete topics, as Kafka's `delete.topic.enable`"
    )
    num_partitions: int = option(
        1,
        "how many partitions a topic gets that is made so, or for which a client gives no number",
        minimum=1,
        maximum=1_000,
    )
    group_rebalance_delay_ms: int = option(
        3_000,
        "how long a group that was empty waits for more members after the first one, as Kafka's "
        "`group.initial.rebalance.delay.ms`",
        unit="ms",
        minimum=0,
        maximum=60_000,
    )
    group_min_session_timeout_ms: int = option(
        6_000,
        "the shortest session that a member may ask for, as Kafka's `group.min.session.timeout.ms`",
        unit="ms",
        minimum=100,
        maximum=1_800_000,
    )
    group_max_session_timeout_ms: int = option(
        1_800_000,
        "the longest one, as Kafka's `group.max.session.timeout.ms`",
        unit="ms",
        minimum=1_000,
        maximum=86_400_000,
    )
    group_max_size: int = option(
        1_000,
        "how many members a group may have, as Kafka's `group.max.size`",
        minimum=1,
        maximum=10_000,
    )
    offsets_retention_minutes: int = option(
        10_080,
        "how long what a group has committed is kept when nobody is in it and nothing more is "
        "committed, as Kafka's `offsets.retention.minutes`",
        unit="min",
        minimum=1,
        maximum=2**31 - 1,
    )
    offset_metadata_max_bytes: int = option(
        4_096,
        "of the text that a client commits beside an offset, as Kafka's "
        "`offset.metadata.max.bytes`",
        unit="bytes",
        minimum=0,
        maximum=65_536,
    )

    def __post_init__(self) -> None:
        if bool(self.kafka_tls_certificate) != bool(self.kafka_tls_key):
            lacking = "kafka_tls_key" if self.kafka_tls_certificate else "kafka_tls_certificate"
            raise ConfigError(
                lacking, "", "must be set, too: a certificate and its key go together"
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway; tests have smaller ones."""

    max_produce_bytes: int = 100 << 20
    """Octets of a request with records; as Kafka's ``socket.request.max.bytes``."""

    max_request_bytes: int = 2 << 20
    """Octets of any other request.  As objects of Python they may take fifty times as many; real
    ones have some hundred octets, those that name ten thousand partitions a hundred thousand."""

    max_partitions: int = 20_000
    """Partitions and topics in a request with records.  Each takes some octets there, and some
    hundred as an object of Python; a producer sends to a few hundred partitions at once."""

    max_in_flight_bytes: int = 256 << 20
    """Octets of all requests that are not answered, and of responses that clients have not taken.
    No more are read above it; a single request of any size passes, when it is alone."""

    max_connections: int = 10_000
    """A client has two or three to each gateway.  For one above it the one that was idle longest is
    closed, as Kafka's clients are used to; if none is idle, the new one is refused.  Where clients
    must say who they are it is the oldest of those that have not."""

    max_pipelined: int = 5
    """Requests with records of one connection that are worked on at the same time: as many as an
    idempotent producer sends.  All other requests wait for the one before, as at Kafka."""

    arrival_s: float = 30.0
    """How long a request that has begun may take to arrive, and a response to be taken; the time
    that it takes at ``slowest_bytes_per_s`` comes on top."""

    slowest_bytes_per_s: int = 64 << 10
    """Slower connections than this cannot be used: each of their requests would hold its place
    among ``max_in_flight_bytes`` for minutes."""

    def patience_s(self, size_bytes: int) -> float:
        """How long so many octets may take."""
        return self.arrival_s + size_bytes / self.slowest_bytes_per_s
