"""Which gateways there are, and which of them is chosen for what.

A gateway announces where Kafka clients reach it, in internal topic ``__dafka.kafka.gateways``: a
record in the partition whose name is its store's address, written by that store::

    {"v": 1, "host": "10.0.0.7", "port": 9092}

The last record that can be read counts.  A gateway that ends says so by one without a host.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, NamedTuple, Protocol
from zlib import crc32

import xxhash
from msgspec import Meta

from dafka_core.errors import InvalidRequestError
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.store import Store
from dafka_core.system.hosts import bracketed, is_host

GATEWAYS_TOPIC: Final = f"{INTERNAL}kafka.gateways"
"""Where gateways announce themselves."""

LAST_RECORDS: Final = 16
"""Of each partition: anybody may write there, and what cannot be read is passed over."""

MAX_ANNOUNCEMENT_BYTES: Final = 4_096
"""A longer record is none."""

ANNOUNCE_TIMEOUT_S: Final = 10.0
"""How long the store may take to write a few octets."""


class Announcement(JsonMessage, frozen=True, omit_defaults=True):
    """Where Kafka clients reach a gateway; without a host it has ended."""

    what: ClassVar[str] = "announcement of a gateway"

    host: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0


class GatewayInfo(NamedTuple):
    """A gateway: its store's address, its Kafka node id, and where clients reach it."""

    address: str
    node_id: int
    host: str
    port: int


class Placed(Protocol):
    """What has a gateway of its own: a numbered partition."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def number(self) -> int:
        """Its number there."""

    @property
    def gateway(self) -> str:
        """The address of the gateway that takes its writes."""


def node_id(address: str) -> int:
    """A gateway's Kafka node id, which lasts as long as its store's address."""
    return crc32(address.encode("utf-8", "surrogateescape")) & 0x7FFF_FFFF


def ranked(key: str, addresses: Sequence[str]) -> list[str]:
    """Addresses in an order that the key decides: rendezvous hashing.

    All who know the same addresses agree on the first one, and one that goes away moves only what
    it was chosen for.
    """

    def weight(address: str) -> tuple[int, str]:
        text = f"{key}\0{address}".encode("utf-8", "surrogateescape")
        return xxhash.xxh3_64_intdigest(text), address

    return sorted(addresses, key=weight, reverse=True)


class Gateways:
    """The gateways of a cluster, as one of them knows them.  Thread-safe.

    Args:
        store: the store of this gateway.
        host, port: where Kafka clients reach it.
    """

    def __init__(self, store: Store, host: str, port: int) -> None:
        self.own = GatewayInfo(store.address, node_id(store.address), host, port)
        self._store = store
        self._log = store.log
        self._lock = threading.Lock()
        self._changes = -1  # of the log, that have been looked at
        self._found: dict[str, GatewayInfo | None] = {}  # by store; None: it has no gateway

    def announce(self) -> None:
        """Tells the other gateways where this one is; it is on disk then.

        Raises:
            DafkaError: the store has ended, or does not write.
        """
        self._say(Announcement(self.own.host, self.own.port))

    def retract(self) -> None:
        """Tells them that this one has ended.  Raises as ``announce``."""
        self._say(Announcement())

    def live(self) -> Sequence[GatewayInfo]:
        """This gateway, and the others whose stores are there now; in the order of node ids."""
        here = self._store.known.here
        with self._lock:
            self._look(here)
            others = [self._found.get(store) for store in here]
        return sorted([self.own, *(each for each in others if each)], key=lambda each: each.node_id)

    def chosen(self, key: str) -> GatewayInfo:
        """The live gateway that is responsible for what ``key`` names, as all of them see it."""
        return self.ranked(key)[0]

    def controller(self) -> GatewayInfo:
        """The gateway that is said to be the controller: any will do, and all say the same one."""
        return self.chosen(GATEWAYS_TOPIC)

    def ranked(self, key: str) -> list[GatewayInfo]:
        """All live ones: who is responsible, and who if that one goes away, and so on."""
        live = {each.address: each for each in self.live()}
        return [live[address] for address in ranked(key, tuple(live))]

    def leader(self, partition: Placed) -> GatewayInfo:
        """Who is said to lead a partition: its own gateway; while that is away, another one."""
        for each in (live := self.live()):
            if each.address == partition.gateway:
                return each
        if len(live) == 1:
            return live[0]
        return self.chosen(f"{partition.topic}/{partition.number}")

    def _look(self, here: frozenset[str]) -> None:
        changes = self._log.changes
        number = changes.number
        if changes.since(self._changes, frozenset((GATEWAYS_TOPIC,))) != []:
            self._found.clear()
        self._changes = number
        for store in here.difference(self._found):
            self._found[store] = self._last(store)

    def _last(self, store: str) -> GatewayInfo | None:
        for said in self._said(store):
            if not said.host:
                return None
            if said.port and is_host(bracketed(said.host)):
                return GatewayInfo(store, node_id(store), said.host, said.port)
        return None

    def _said(self, store: str) -> list[Announcement]:
        tp = TopicPartition(GATEWAYS_TOPIC, store)
        end = self._log.end(tp)
        found = []
        for batch in self._log.read(tp, max(end - LAST_RECORDS, 0), end):
            for value in batch.values:
                try:
                    if len(value) <= MAX_ANNOUNCEMENT_BYTES:
                        found.append(Announcement.parse(value))
                except InvalidRequestError:
                    continue
        return found[::-1]

    def _say(self, what: Announcement) -> None:
        if self._said(self.own.address)[:1] != [what]:
            tp = TopicPartition(GATEWAYS_TOPIC, self.own.address)
            append = self._store.append_queue.append
            append(tp, [what.packed()], timeout_s=ANNOUNCE_TIMEOUT_S)


def retract_former(store: Store) -> None:
    """Says that a store has no gateway now, if it had one that was killed before it could.

    Else the others would take it for live: its store is there.

    Raises:
        DafkaError: the store has ended, or does not write.
    """
    gateways = Gateways(store, "", 0)
    if any(said.host for said in gateways._said(store.address)[:1]):  # noqa: SLF001 -- its own
        gateways.retract()
