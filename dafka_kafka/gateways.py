"""The gateways of a cluster, and the choice of one for a partition or group.

A gateway announces its address in internal topic ``__dafka.kafka.gateways``, by a record that its
store writes to the partition with the store's address::

    {"v": 1, "host": "10.0.0.7", "port": 9092}

The last valid record counts. A record without a host says that the gateway has closed. After a
store was away, only a record of its new run counts: the gateway writes it when its port is open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Final, NamedTuple
from zlib import crc32

import xxhash
from msgspec import Meta

from dafka_core.model.json_message import JsonMessage
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.store import Store
from dafka_core.system.hosts import bracketed, is_host
from dafka_kafka.registry_table import NumberedPartition

GATEWAYS_TOPIC: Final = f"{INTERNAL}kafka.gateways"  # the topic of announcements

LAST_RECORDS: Final = 16
"""Records read of each partition: any producer can write there, and invalid ones are skipped."""

MAX_ANNOUNCEMENT_BYTES: Final = 4_096  # longer records are invalid
ANNOUNCE_TIMEOUT_S: Final = 10.0  # time for the store to write an announcement


RETURN_S: Final = 10.0
"""Time after which a store that was away counts without a new record: it was not restarted, but
only cut off. A gateway that starts needs a few seconds."""


class Announcement(JsonMessage, frozen=True, omit_defaults=True):
    """The address for Kafka clients; without a host the gateway has closed."""

    what: ClassVar[str] = "announcement of a gateway"

    host: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0


class GatewayInfo(NamedTuple):
    """A gateway: its store's address, its Kafka node id, and its address for clients."""

    address: str
    node_id: int
    host: str
    port: int


def node_id(address: str) -> int:
    """Return a gateway's Kafka node id, which depends on its store's address only."""
    return crc32(address.encode("utf-8", "surrogateescape")) & 0x7FFF_FFFF


def ranked(key: str, addresses: Sequence[str]) -> list[str]:
    """Rank addresses for a key by rendezvous hashing.

    With the same addresses every gateway computes the same order, and a gateway that leaves moves
    only what it was chosen for.
    """

    def weight(address: str) -> tuple[int, str]:
        text = f"{key}\0{address}".encode("utf-8", "surrogateescape")
        return xxhash.xxh3_64_intdigest(text), address

    return sorted(addresses, key=weight, reverse=True)


class Gateways:
    """The gateways of a cluster, as seen by one of them; thread-safe.

    Args:
        store: this gateway's store.
        host, port: this gateway's address for clients.
    """

    def __init__(self, store: Store, host: str, port: int) -> None:
        self.own = GatewayInfo(store.address, node_id(store.address), host, port)
        self.leader_of: Callable[[str], str | None] = lambda owner: None
        """Returns the leader of an owner's partitions, if another gateway can follow it."""
        self._store = store
        self._log = store.log
        self._lock = threading.Lock()
        self._changes = -1  # the log's change number up to which announcements are read
        self._found: dict[str, GatewayInfo | None] = {}  # by store; None: no gateway
        self._here: frozenset[str] = frozenset()
        # By store that was away: the end of its announcements when it left, and when to trust them.
        self._returning: dict[str, tuple[int, float]] = {}

    def announce(self, *, again: bool = False) -> None:
        """Announce this gateway, durably; ``again`` for others that believe it is away.

        Raises:
            DafkaError: the store has ended, or does not write.
        """
        self._say(Announcement(self.own.host, self.own.port), again=again)

    def retract(self) -> None:
        """Announce that this gateway has closed; raises as ``announce``."""
        self._say(Announcement())

    def live(self) -> Sequence[GatewayInfo]:
        """Return this gateway and those whose stores are reachable, by node id."""
        here = self._store.known.here
        with self._lock:
            self._look(here)
            others = [self._found.get(store) for store in here if self._is_current(store)]
        return sorted([self.own, *(each for each in others if each)], key=lambda each: each.node_id)

    def chosen(self, key: str) -> GatewayInfo:
        """Return the live gateway chosen for a key."""
        return self.ranked(key)[0]

    def ranked(self, key: str) -> list[GatewayInfo]:
        """Return all live gateways, ranked for a key."""
        live = {each.address: each for each in self.live()}
        return [live[address] for address in ranked(key, tuple(live))]

    def leader(self, partition: NumberedPartition) -> GatewayInfo:
        """Return a partition's leader, or a substitute while that is away."""
        leader = self.leader_of(partition.gateway)
        for each in (live := self.live()):
            if each.address == (leader or partition.gateway):
                return each
        if len(live) == 1:
            return live[0]
        if leader is not None:  # the next one
            return self.chosen(partition.gateway)
        return self.chosen(f"{partition.topic}/{partition.number}")

    def _look(self, here: frozenset[str]) -> None:
        changes = self._log.changes
        number = changes.number
        if changes.since(self._changes, frozenset((GATEWAYS_TOPIC,))) != []:
            self._found.clear()
        self._changes = number
        for store in here.difference(self._found):
            self._found[store] = self._last(store)
        for store in self._here - here:
            self._returning[store] = self._log.end(TopicPartition(GATEWAYS_TOPIC, store)), 0.0
        for store in (here - self._here) & self._returning.keys():
            self._returning[store] = self._returning[store][0], time.monotonic() + RETURN_S
        self._here = here

    def _is_current(self, store: str) -> bool:
        """Return whether a store's last announcement is of its present run."""
        if store in self._returning:
            end, trusted_s = self._returning[store]
            is_new = self._log.end(TopicPartition(GATEWAYS_TOPIC, store)) > end
            if not is_new and time.monotonic() < trusted_s:
                return False
            del self._returning[store]
            self._found[store] = self._last(store)  # it may have come after ``_look``
        return True

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
        found: list[Announcement] = []
        for batch in self._log.read(tp, max(end - LAST_RECORDS, 0), end):
            short = [value for value in batch.values if len(value) <= MAX_ANNOUNCEMENT_BYTES]
            found += filter(None, map(Announcement.parse_or_none, short))
        return found[::-1]

    def _say(self, what: Announcement, *, again: bool = False) -> None:
        if again or self._said(self.own.address)[:1] != [what]:
            tp = TopicPartition(GATEWAYS_TOPIC, self.own.address)
            append = self._store.append_queue.append
            append(tp, [what.packed()], timeout_s=ANNOUNCE_TIMEOUT_S)


def retract_former(store: Store) -> None:
    """Announce that a store has no gateway, in case one was killed before it could.

    Otherwise it would count as live as soon as its store is reachable.

    Raises:
        DafkaError: the store has ended, or does not write.
    """
    gateways = Gateways(store, "", 0)
    if any(said.host for said in gateways._said(store.address)[:1]):  # noqa: SLF001 -- its own
        gateways.retract()
