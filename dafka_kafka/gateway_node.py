"""The parts of a gateway that all features share, and the budget of its connections."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

from dafka_core.nodes.store_handle import StoreHandle
from dafka_kafka.gateways import Gateways
from dafka_kafka.limits import Limits
from dafka_kafka.options import KafkaOptions
from dafka_kafka.partition_registry import PartitionNumbers
from dafka_kafka.replication import Replication

_log: Final = logging.getLogger("dafka.kafka")

SAY_AGAIN_S: Final = 10.0
"""How often bad requests are spoken of: anybody may send thousands in a second."""


class Room:
    """Room for octets in flight: who finds none gets it when there is some, in order of asking."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._waiting: dict[Callable[[], object], int] = {}

    def take(self, size_bytes: int, when_there: Callable[[], object]) -> bool:
        """Whether there is room now.  If not, ``when_there`` is called with the room taken."""
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        self._waiting[when_there] = size_bytes
        return False

    def wait_no_more(self, when_there: Callable[[], object]) -> None:
        """Takes no room for this one; those behind it may have it."""
        self._waiting.pop(when_there, None)
        self.give_back(0)

    def add(self, size_bytes: int) -> None:
        """Takes room without asking, for what is in memory already."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Gives room to those who wait."""
        self.taken_bytes -= size_bytes
        while self._waiting:
            when_there, wanted_bytes = next(iter(self._waiting.items()))
            if not self._fits(wanted_bytes):
                break
            del self._waiting[when_there]
            self.taken_bytes += wanted_bytes
            when_there()

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self.size_bytes


class Complaints:
    """Counts what is wrong with requests and connections, and logs it now and then."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often, by kind."""
        self._said: dict[object, tuple[float, int]] = {}  # when, and how many since then

    def note(
        self,
        kind: str,
        host: str,
        why: str,
        *,
        of: object = None,
        again_s: float = SAY_AGAIN_S,
    ) -> None:
        """Counts one; ``kind`` is one of a few sentences, ``why`` may come from the client.

        Args:
            of: one of a few of whom it is said each time on its own.
            again_s: how often that is.
        """
        self.counts[kind] += 1
        now = time.monotonic()
        said_at, count = self._said.get((kind, of), (-inf, 0))
        if now - said_at < again_s:
            self._said[kind, of] = said_at, count + 1
            return
        self._said[kind, of] = now, 0
        _log.warning("Kafka: %s %d times; the last one from %s: %s", kind, count + 1, host, why)


MAX_THREADS: Final = 8
"""For what would hold up all other clients.  They mostly wait for the disk, or for other stores;
more of them would only take the processor from the store."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, and in which version of its kind."""

    client_id: str
    host: str
    version: int
    is_gone: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Whether its connection has ended: nobody hears the response."""
    may_make: Callable[[str], bool] = field(default=lambda _: True, repr=False)
    """Whether a topic that it names is made if it is not there."""


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A response's body as the octets that are sent, in pieces that need not be joined."""

    pieces: Sequence[bytes | bytearray | memoryview]


Response = Any | EncodedResponse | None
"""A message of ``schemas``, or its octets, or None: the client waits for none (acks=0)."""

Handler = Callable[[Any, Client], Awaitable[Response]]
"""Answers a request, a message of ``schemas``, in the gateway's event loop, which it must not hold
up.  ProtocolError has the connection closed; any other error that it raises is answered with
UNKNOWN_SERVER_ERROR, and logged.  It is cancelled when the client's connection ends; what must be
done to its end all the same is to be shielded."""


class Feature:
    """A part of the gateway, which answers some kinds of requests."""

    handlers: Mapping[int, Handler] = MappingProxyType({})
    """By API key."""

    async def start(self) -> None:
        """Runs in the loop before the first request comes."""

    async def close(self) -> None:
        """Ends; no more requests come."""


@dataclass(frozen=True, slots=True, eq=False)
class GatewayNode:
    """The store behind the gateway, and what is known of partitions and gateways."""

    store: StoreHandle
    options: KafkaOptions
    numbers: PartitionNumbers
    gateways: Gateways
    threads: ThreadPoolExecutor
    room: Room = field(default_factory=lambda: Room(Limits().max_in_flight_bytes))
    """What all requests and responses in flight share."""
    rules_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whose turn it is to change rules of retention: who does reads and writes all of them."""
    replication: Replication = field(init=False)
    """Waits for other stores, for all features; who makes the node closes it behind them."""

    def __post_init__(self) -> None:
        store = self.store
        replication = Replication(lambda: store.endpoints, store.options.keys)
        object.__setattr__(self, "replication", replication)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Does what would hold up other clients, as reading the log, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: work(*args, **named))
