"""The stores of a mesh that serve Arrow Flight, as one process knows them.

The mesh reports the stores and their endpoints, and a store describes where its log is.  A
micro-batch of a few rows has no time to ask the mesh.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.cluster_reader import map_concurrently

_log = logging.getLogger("dafka_spark")

T = TypeVar("T")

Answer = tuple[StoreLocation, T]  # a store's location and its answer


@dataclass(slots=True)
class _Store:
    """State of one store: ``location`` while it answers, ``failure`` while it does not."""

    announced: tuple[str, ...]
    location: StoreLocation | None = None
    described_at: float = -math.inf
    failure: StoreUnreachableError | None = None
    failing_since: float = math.inf
    retry_at: float = -math.inf

    def fail(self, name: str, error: DafkaError) -> None:
        if not isinstance(error, StoreUnreachableError):
            error = StoreUnreachableError(name, str(error))
        now = time.monotonic()
        if self.failure is None:
            self.failing_since = now
            _log.warning("%s", error)
        self.failure, self.retry_at, self.location = error, now + timing.STORE_BACKOFF_S, None


class StoreRegistry:
    """The stores that a mesh reports.  Thread-safe.

    Attributes:
        others: stores without Flight, which only the mesh reaches.
        updated_at: time of the last ``update``, on the clock ``time.monotonic``.
    """

    def __init__(self, locations: Sequence[StoreLocation] = (), *, keys: KeyFiles) -> None:
        self._keys = keys
        self.others: list[str] = []
        self.updated_at = -math.inf
        self._stores = {each.store: _Store(each.locations, each) for each in locations}

    @property
    def locations(self) -> list[StoreLocation]:
        """The locations of the stores that answered their last request, by name."""
        found = [each.location for each in self._stores.values() if each.location]
        return sorted(found, key=lambda location: location.store)

    def update(self, endpoints: Mapping[str, tuple[str, ...]], stores: Sequence[str]) -> None:
        """Replace the stores by those that a reader of the mesh reports."""
        known = self._stores
        self._stores = {
            store: known[store]
            if store in known and known[store].announced == announced
            else _Store(announced)
            for store, announced in endpoints.items()
        }
        self.others = sorted(set(stores) - set(endpoints))
        self.updated_at = time.monotonic()

    def ask(
        self,
        work: Callable[[StoreClient], T],
        *,
        timeout_s: float = timing.REQUEST_TIMEOUT_S,
        max_age_s: float = timing.LOCATION_MAX_AGE_S,
        again: bool = False,
    ) -> list[Answer[T]]:
        """Run ``work`` with a client of each store, concurrently; return the answers.

        A store describes its location, within ``timeout_s``, if it is older than ``max_age_s``.
        Stores that failed a moment ago are asked only if ``again`` is true.
        """
        now = time.monotonic()
        due = [each for each in sorted(self._stores.items()) if again or now >= each[1].retry_at]

        def ask_one(named: tuple[str, _Store]) -> Answer[T] | None:
            name, store = named
            try:
                location = self._located(name, store, timeout_s, max_age_s)
                with connections.borrow_client(location, self._keys) as client:
                    answer = location, work(client)
            except (StoreUnreachableError, ConfigError) as error:  # or an invalid endpoint
                store.fail(name, error)
                return None
            store.failure, store.failing_since = None, math.inf
            return answer

        return [each for each in map_concurrently(ask_one, due) if each is not None]

    def failures(self, longer_than_s: float = 0.0) -> list[StoreUnreachableError]:
        """Return the errors of stores that have failed for at least ``longer_than_s``."""
        before = time.monotonic() - longer_than_s
        stores = self._stores.values()
        return [each.failure for each in stores if each.failure and each.failing_since <= before]

    def silent(self, at_most_s: float = math.inf) -> list[str]:
        """Return the stores that have failed for at most ``at_most_s``; they may come back."""
        after = time.monotonic() - at_most_s
        stores = sorted(self._stores.items())
        return [name for name, each in stores if each.failure and each.failing_since >= after]

    def _located(
        self, name: str, store: _Store, timeout_s: float, max_age_s: float
    ) -> StoreLocation:
        now = time.monotonic()
        if store.location is None or now >= store.described_at + max_age_s:
            announced = StoreLocation(name, store.announced)
            with connections.borrow_client(announced, self._keys) as client:
                found = client.describe(timeout_s=timeout_s)
            if found.store != name:
                why = f"store {found.store} answers at {store.announced[0]}"
                raise StoreUnreachableError(name, why)
            store.location, store.described_at = found.found_at(store.announced), now
        return store.location
