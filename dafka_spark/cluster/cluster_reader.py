"""Readers of a cluster's stores: over the mesh, or by Arrow Flight without a mesh."""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, TypeVar

from dafka_core import Reader
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import DafkaError, NoStoreError, StoreUnreachableError, TowerNotFoundError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition, merge_heads
from dafka_core.system.closing import Closing
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline

MAX_CONCURRENT: Final = 16  # each store asked at the same time takes a thread

NO_MESH: Final = "with option stores there is no mesh to read from"

_log = logging.getLogger("dafka_spark")

Item = TypeVar("Item")
T = TypeVar("T")


def map_concurrently(work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """Apply ``work`` to all items, up to ``MAX_CONCURRENT`` at a time."""
    if len(items) < 2:
        return [work(each) for each in items]
    with ThreadPoolExecutor(min(len(items), MAX_CONCURRENT)) as pool:
        return list(pool.map(work, items))


class _FlightReader(Closing):
    """A ``Reader`` without a mesh; ``refusal`` is the error for what only a mesh can do."""

    def __init__(self, places: Sequence[str], refusal: DafkaError, keys: KeyFiles) -> None:
        self._places = places  # towers or stores, for errors
        self._refusal = refusal
        self._keys = keys
        self._failure = ""  # the error of the last store that failed

    @abstractmethod
    def _at(self) -> list[StoreLocation]:
        """Return the stores to ask."""

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """See ``Reader``; raise NoStoreError after ``timeout_s`` without an answer."""

        def heads_at(client: StoreClient) -> list[PartitionInfo]:
            return client.heads(topics, timeout_s=timing.REQUEST_TIMEOUT_S)

        for _ in (deadline := Deadline(timeout_s)).attempts():
            if heads := self._ask(self._at(), heads_at):
                return [*merge_heads(info for infos in heads.values() for info in infos).values()]
        error = NoStoreError(self._places, deadline.timeout_s)
        error.add_note(self._failure)
        raise error

    def wait_for_stores(self, *, timeout_s: float) -> None:
        pass  # the stores are known

    def read(self, tp: TopicPartition, start: int, end: int, *, timeout_s: float) -> NoReturn:
        raise self._refusal

    def times(self, tp: TopicPartition, start: int, end: int, *, timeout_s: float) -> NoReturn:
        raise self._refusal

    def close(self) -> None:
        pass  # each request has a connection of its own

    def _known_stores(self, at: Sequence[StoreLocation]) -> dict[str, list[StoreLocation]]:
        """Return the stores that each store knows, beginning with itself."""
        return self._ask(at, lambda client: client.stores(timeout_s=timing.REQUEST_TIMEOUT_S))

    def _ask(
        self, locations: Sequence[StoreLocation], work: Callable[[StoreClient], T]
    ) -> dict[str, T]:
        """Return the answers of the stores that answer, by the first URI of each."""

        def ask(location: StoreLocation) -> tuple[str, T] | None:
            uri = location.locations[0]
            try:
                with StoreClient(location, self._keys) as client:
                    return uri, work(client)
            except DafkaError as error:
                self._failure = f"{uri}: {error}"
                return None

        return dict(each for each in map_concurrently(ask, locations) if each is not None)


class NamedStoresReader(_FlightReader):
    """The stores of option ``stores``, by their URIs; one that never answered has no other name."""

    def __init__(self, uris: Sequence[str], keys: KeyFiles) -> None:
        super().__init__(uris, StoreUnreachableError(", ".join(uris), NO_MESH), keys)
        self._uris = uris
        self._found: dict[str, StoreLocation] = {}  # by URI
        self._others: dict[str, StoreLocation] = {}  # stores that these know, by address
        self._asked_at = -math.inf

    def stores(self) -> list[str]:
        """See ``Reader``."""
        return sorted(self._locations())

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """See ``Reader``; the URI of the option comes first."""
        is_whole = len(self._found) == len(self._uris)
        age_s = timing.LOCATION_MAX_AGE_S if is_whole else timing.STORE_BACKOFF_S
        if time.monotonic() >= self._asked_at + age_s:
            self._refresh()
        return {name: each.locations for name, each in self._locations().items()}

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``; a store that the option does not name is missing, too."""
        there = self._refresh()
        named = self._locations()
        missing = {name: each.locations[0] for name, each in named.items() if name not in there}
        for name, other in self._others.items():
            if named.keys().isdisjoint({name, *other.locations}):
                missing[name] = "".join(other.locations[-1:])
        return sorted(KnownStore(*each) for each in missing.items())

    def _at(self) -> list[StoreLocation]:
        if not self._found:
            self._refresh()
        return [*self._found.values()]

    def _locations(self) -> dict[str, StoreLocation]:
        found = (self._found.get(uri, StoreLocation(uri, (uri,))) for uri in self._uris)
        return {each.store: each for each in found}

    def _refresh(self) -> set[str]:
        """Ask the stores, which report each other; return the names of those that answer."""
        self._asked_at = time.monotonic()
        answers = self._known_stores([StoreLocation("", (uri,)) for uri in self._uris])
        for uri, (itself, *others) in answers.items():
            self._found[uri] = itself.found_at([uri])
            self._others |= {each.store: each for each in others}
        return {itself.store for itself, *_ in answers.values()}


class KnownStoresReader(_FlightReader):
    """The stores that this machine knew before, while no tower answers.

    Raises ``refusal``, the error of the tower, if none of them answers.
    """

    def __init__(
        self, known: Sequence[StoreLocation], refusal: TowerNotFoundError, keys: KeyFiles
    ) -> None:
        super().__init__(refusal.towers, refusal, keys)
        self.retry_at = time.monotonic() + timing.TOWER_RETRY_S  # the towers
        self._known = list(known)
        self._before = self.stores()
        if not self._refresh():
            raise refusal
        text = "%s. The query continues with the stores known before: %s"
        _log.warning(text, refusal, ", ".join(self.stores()))

    def stores(self) -> list[str]:
        """See ``Reader``."""
        return [each.store for each in self._known]

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """See ``Reader``; the last known ones while no store answers."""
        self._refresh()
        return {each.store: each.locations for each in self._known}

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader``; stores without a tower report a dead one for ever, so each is asked."""
        known = {*self._before, *self.stores()}
        return [KnownStore(each) for each in sorted(known - self._refresh())]

    def _at(self) -> list[StoreLocation]:
        return self._known

    def _refresh(self) -> set[str]:
        """Ask the stores, which report each other; return the names of those that answer."""
        answers = self._known_stores(self._known)
        known = {each.store: each for stores in answers.values() for each in stores}
        if known:
            self._known = [known[store] for store in sorted(known)]
        return {itself.store for itself, *_ in answers.values()}


ClusterReader = Reader | NamedStoresReader | KnownStoresReader
"""Access to the stores of a cluster, by the methods of ``Reader`` that these have in common."""
