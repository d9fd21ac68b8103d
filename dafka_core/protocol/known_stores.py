"""A store's durable list of all other stores it has discovered; requestors receive it.

Records that only an absent store has are missing from every answer.  The other stores cannot know
them, but they know that the store exists.  They send its name to each requestor when it connects,
and before an answer if the list has changed since (STORES-KNOWN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dafka_core.model.log_entries import LogEntry, StoreSeen
from dafka_core.model.records import KnownStore
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import MAX_STORES, RecentNames
from dafka_core.protocol.messages import Message, StoreEndpoints, StoreHello, StoresKnown
from dafka_core.protocol.role import Outgoing


class KnownStores:
    """A store's list of the other stores.

    Args:
        store: its own address.
        known: the list on its disk.
        wall_us: clock, microseconds since 1970 UTC.
        write: passes an entry to the log.
    """

    def __init__(
        self,
        store: str,
        known: Iterable[StoreSeen],
        wall_us: Callable[[], int],
        write: Callable[[LogEntry], None],
    ) -> None:
        self.store = store
        self.locations: tuple[str, ...] = ()  # this store's Flight endpoints; sent to requestors
        # Those of the other present stores.  Replaced, not changed: other threads read it.
        self.endpoints: Mapping[str, tuple[str, ...]] = {}
        self._stores = {each.store: each for each in known if each.store != store}
        self._wall_us = wall_us
        self._write = write
        self._peers: dict[str, str] = {}  # endpoints of present nodes, which may be stores
        self._sent = RecentNames[int](MAX_PEERS)  # by requestor: the last change sent
        self._changes = 0
        self._is_starting = True  # until the beacons of present stores have arrived
        self._due = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Return all addresses."""
        return tuple(self._stores)

    @property
    def here(self) -> frozenset[str]:
        """Return the addresses of present stores."""
        # Called from other threads: each of the two copies is atomic.
        return frozenset(tuple(self._stores)).intersection(tuple(self._peers))

    def on_announced(self, peer: str, endpoint: str) -> None:
        """Note the endpoint of a peer that may be a store."""
        self._changes += peer in self._stores
        if peer in self._peers or len(self._peers) < MAX_PEERS:
            self._peers[peer] = endpoint

    def on_endpoints(self, message: StoreEndpoints) -> None:
        """Note the Flight endpoints of a store."""
        known = self.endpoints.get(message.store)
        if known != message.locations and (known or len(self.endpoints) < MAX_STORES):
            self.endpoints = {**self.endpoints, message.store: message.locations}

    def add(self, store: str) -> None:
        """Add or confirm a store; a new one is written at once."""
        if store in self._stores:
            if store not in self._peers:
                self.on_announced(store, "")
        elif len(self._stores) < MAX_STORES:
            self._peers.setdefault(store, "")
            self._note(store)

    def forget(self, store: str) -> bool:
        """Forget a store until it appears again; return False if it is present."""
        if store in self._peers:
            return False
        self._changes += self._stores.pop(store, None) is not None
        return True

    def on_peer_lost(self, peer: str) -> None:
        """Note that a peer was silent for too long."""
        if peer in self.endpoints:
            self.endpoints = {each: at for each, at in self.endpoints.items() if each != peer}
        if peer in self._stores and peer in self._peers:
            self._note(peer)
        self._peers.pop(peer, None)

    def greeting(self, kind: type[Message], requestor: str) -> Outgoing | None:
        """Return the greeting for a peer that subscribes to it with its own address."""
        if not requestor or requestor == self.store:
            return None
        if kind is StoreHello:  # RFC 46: a store "SHALL send a STORE-HELLO ... to the subscriber"
            return StoreHello(requestor, self.store)
        if kind is StoreEndpoints and self.locations:
            return StoreEndpoints(requestor, self.store, self.locations)
        if kind is StoresKnown:
            # Permanently: a peer that is only late does not subscribe again.
            self._sent.keep(requestor, -1)
            return self.changes_for(requestor)
        return None

    def changes_for(self, requestor: str) -> StoresKnown | None:
        """Return changes since the last message to a requestor that understands them."""
        if self._sent.get(requestor, self._changes) == self._changes:
            return None
        self._sent[requestor] = self._changes
        here = self._stores if self._is_starting else self._peers
        entries = tuple(KnownStore(*each, name in here) for name, each in self._stores.items())
        return StoresKnown(requestor, self.store, entries)

    def on_tick(self, now: float) -> None:
        """Write the times of present stores at intervals."""
        if not self._due:
            self._due = now + timing.KNOWN_STORE_GRACE_S
        elif now >= self._due:
            self._due = now + timing.KNOWN_STORE_WRITE_S
            if self._is_starting:
                self._is_starting = False
                self._changes += 1
            else:
                for store in [name for name in self._stores if name in self._peers]:
                    self._note(store)

    def deadline(self) -> float:
        """Return the time of the next write."""
        return self._due

    def _note(self, store: str) -> None:
        known = self._stores.get(store, StoreSeen(store))
        endpoint = self._peers.get(store) or known.endpoint
        self._stores[store] = StoreSeen(store, endpoint, self._wall_us())
        self._write(self._stores[store])
        self._changes += 1
