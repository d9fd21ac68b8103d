"""The other stores that a store has ever met, kept on its disk; requestors are told of them.

What only a store has that is away is missing from every answer.  The others cannot know what that
is, but they know that there is such a store.  Which it is they tell each requestor when it
connects, and before the answer to a question when that has changed since (STORES-KNOWN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dafka_core.model.log_entries import LogEntry, Met
from dafka_core.model.records import KnownStore
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import MAX_STORES, RecentNames
from dafka_core.protocol.messages import Message, StoreEndpoints, StoreHello, StoresKnown
from dafka_core.protocol.role import Outgoing

KEPT_S: Final = 600.0
"""How often it is written down that a store is there: so exact is "last heard" after a crash."""

BEGIN_S: Final = 2.0
"""How long a store that has just started takes those that it knows for there: it hears of them
only now."""


class KnownStores:
    """What one store knows of the others.

    Args:
        store: its own address.
        met: as it lies on its disk.
        wall_us: the time, microseconds since 1970 UTC.
        write: hands an entry to the log.
    """

    def __init__(
        self,
        store: str,
        met: Iterable[Met],
        wall_us: Callable[[], int],
        write: Callable[[LogEntry], None],
    ) -> None:
        self.endpoints: dict[str, tuple[str, ...]] = {}
        """Where others' records can be read in bulk, by address of those that are there."""
        self.locations: tuple[str, ...] = ()
        """Where this store's can; told to requestors."""
        self.store = store
        self._met = {each.store: each for each in met if each.store != store}
        self._wall_us = wall_us
        self._write = write
        self._peers: dict[str, str] = {}  # that are there, and where they were announced
        self._told = RecentNames[int](
            MAX_PEERS
        )  # requestors, and which change they have been told of
        self._changes = 0
        self._begins = True
        self._settled_at = self._due = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The addresses of all of them."""
        return tuple(self._met)

    @property
    def here(self) -> frozenset[str]:
        """The addresses of those that are there."""
        # Other threads ask, too: each of the two copies is made in one step.
        return frozenset(tuple(self._met)).intersection(tuple(self._peers))

    def on_announced(self, peer: str, endpoint: str) -> None:
        """A tower has announced a peer, which may be a store."""
        self._changes += peer in self._met
        if peer in self._peers or len(self._peers) < MAX_PEERS:
            self._peers[peer] = endpoint

    def on_endpoints(self, message: StoreEndpoints) -> None:
        """A store says where its records can be read in bulk."""
        if message.store in self.endpoints or len(self.endpoints) < MAX_STORES:
            self.endpoints[message.store] = message.locations

    def meet(self, store: str) -> None:
        """Another store is there; the first time that is written down at once."""
        if store in self._met:
            if store not in self._peers:
                self.on_announced(store, "")
        elif len(self._met) < MAX_STORES:
            self._peers.setdefault(store, "")
            self._note(store)

    def forget(self, store: str) -> bool:
        """Forgets a store until it comes again; False where it is there."""
        if store in self._peers:
            return False
        self._changes += self._met.pop(store, None) is not None
        return True

    def on_peer_lost(self, peer: str) -> None:
        """A peer has been silent for too long."""
        self.endpoints.pop(peer, None)
        if peer in self._met and peer in self._peers:
            self._note(peer)
        self._peers.pop(peer, None)

    def greeting(self, kind: type[Message], requestor: str) -> Outgoing | None:
        """What is said to who subscribes to it with its own address."""
        if not requestor or requestor == self.store:
            return None
        if kind is StoreHello:  # RFC 46: a store "SHALL send a STORE-HELLO ... to the subscriber"
            return StoreHello(requestor, self.store)
        if kind is StoreEndpoints and self.locations:
            return StoreEndpoints(requestor, self.store, self.locations)
        if kind is StoresKnown:
            # For good: who is only late does not subscribe anew.
            self._told.keep(requestor, -1)
            return self.news(requestor)
        return None

    def news(self, requestor: str) -> StoresKnown | None:
        """Tells it what has changed since it was told, if it understands that."""
        if self._told.get(requestor, self._changes) == self._changes:
            return None
        self._told[requestor] = self._changes
        here = self._met if self._begins else self._peers
        entries = tuple(KnownStore(*each, name in here) for name, each in self._met.items())
        return StoresKnown(requestor, self.store, entries)

    def on_tick(self, now: float) -> None:
        """Writes down, now and then, who is there."""
        if not self._due:
            self._due, self._settled_at = now + KEPT_S, now + BEGIN_S
        if self._begins and now >= self._settled_at:
            self._begins = False
            self._changes += 1
        if now >= self._due:
            self._due = now + KEPT_S
            for store in [name for name in self._met if name in self._peers]:
                self._note(store)

    def deadline(self) -> float:
        """When there is something to do."""
        return self._settled_at if self._begins else self._due

    def _note(self, store: str) -> None:
        known = self._met.get(store, Met(store))
        self._met[store] = Met(store, self._peers.get(store) or known.endpoint, self._wall_us())
        self._write(self._met[store])
        self._changes += 1
