"""What clients of Kafka may ask of a gateway at most: anybody who reaches its port is one."""

from __future__ import annotations

from dataclasses import dataclass


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
