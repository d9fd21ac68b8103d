"""The options of a gateway, and its limits for clients."""

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
    """A gateway's options."""

    MAIN = frozenset({"listen", "advertised", "num_partitions"})

    listen: str = option(
        f"127.0.0.1:{DEFAULT_PORT}",
        "where Kafka's clients connect; port 0 lets the system choose",
        kind="HOST[:PORT]",
        parse=_parse,
    )
    advertised: str | None = option(
        None,
        "the address for clients, if other than `listen`: behind address translation, and when "
        "listening on all addresses. Port 0: that of `listen`",
        kind="HOST[:PORT]",
        parse=_parse,
    )
    kafka_users: str = option(
        "",
        "a file of users, by `dafka kafka-user`: clients authenticate by SASL with "
        "SCRAM-SHA-256, SCRAM-SHA-512, or PLAIN on an encrypted connection",
        kind="FILE",
    )
    kafka_tls_certificate: str = option(
        "",
        "a PEM file with a certificate and its intermediate ones: clients connect by TLS",
        kind="FILE",
    )
    kafka_tls_key: str = option(
        "", "the certificate's key, a PEM file without a password", kind="FILE"
    )
    auto_create_topics: bool = option(
        True, "create a missing topic when one of Kafka's clients requests it"
    )
    delete_topics: bool = option(
        True, "Kafka's clients may delete topics, as Kafka's `delete.topic.enable`"
    )
    num_partitions: int = option(
        1,
        "partitions of a topic that a client requests or creates without a number of them",
        minimum=1,
        maximum=1_000,
    )
    group_rebalance_delay_ms: int = option(
        3_000,
        "wait of an empty group for more members, as Kafka's `group.initial.rebalance.delay.ms`",
        unit="ms",
        minimum=0,
        maximum=60_000,
    )
    group_min_session_timeout_ms: int = option(
        6_000,
        "as Kafka's `group.min.session.timeout.ms`",
        unit="ms",
        minimum=100,
        maximum=1_800_000,
    )
    group_max_session_timeout_ms: int = option(
        1_800_000,
        "as Kafka's `group.max.session.timeout.ms`",
        unit="ms",
        minimum=1_000,
        maximum=86_400_000,
    )
    group_max_size: int = option(
        1_000,
        "members of a group, as Kafka's `group.max.size`",
        minimum=1,
        maximum=10_000,
    )
    offsets_retention_minutes: int = option(
        10_080,
        "retention of a group's commits without members and new commits, as Kafka's "
        "`offsets.retention.minutes`",
        unit="min",
        minimum=1,
        maximum=2**31 - 1,
    )
    offset_metadata_max_bytes: int = option(
        4_096,
        "metadata of a committed offset, as Kafka's `offset.metadata.max.bytes`",
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
    """The limits of one gateway; tests have lower ones."""

    max_produce_bytes: int = 100 << 20
    """Size of a Produce request; as Kafka's ``socket.request.max.bytes``."""

    max_request_bytes: int = 2 << 20
    """Size of any other request. As Python objects it may take fifty times as much; real requests
    have some hundred bytes, those that name ten thousand partitions a hundred thousand."""

    max_in_flight_bytes: int = 256 << 20
    """Bytes of unanswered requests and unread responses. Above it no request is read; a single
    request of any size passes when it is alone."""

    max_connections: int = 10_000
    """A client has two or three to each gateway. Beyond the limit the longest idle connection is
    closed, as Kafka's clients expect; if none is idle, the new one. With users, it is the oldest
    unauthenticated one."""

    max_pipelined: int = 100
    """Produce requests of one connection that overlap: with ``acks=all`` each takes as long as the
    slowest store, and librdkafka sends a small one every few milliseconds. All other requests wait
    for the previous one, as in Kafka."""

    arrival_s: float = 30.0
    """Time for a request to arrive, and for a response to be read, in addition to its size by
    ``slowest_bytes_per_s``."""

    slowest_bytes_per_s: int = 64 << 10
    """Slower connections are closed: their requests would hold ``max_in_flight_bytes`` for
    minutes."""

    def patience_s(self, size_bytes: int) -> float:
        """Return the time allowed for this many bytes."""
        return self.arrival_s + size_bytes / self.slowest_bytes_per_s
