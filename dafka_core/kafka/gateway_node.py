"""What each feature of a gateway is given, and what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

from dafka_core.kafka.gateways import Gateways
from dafka_core.kafka.kafka_options import KafkaOptions
from dafka_core.kafka.limits import Limits
from dafka_core.kafka.partition_numbers import PartitionNumbers
from dafka_core.kafka.replication import Replication
from dafka_core.kafka.traffic import Room
from dafka_core.nodes.store_handle import StoreHandle

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
