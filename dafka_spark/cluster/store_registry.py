"""Stores of a mesh that serve Arrow Flight, as this process knows them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_spark.cluster import connections, timing

# The stores of a mesh that serve Arrow Flight, as a process knows them.
#
# The mesh tells which stores there are and where each says it is; a store itself describes where
# its log lies. A micro-batch of a few rows has no time to ask the mesh, so what was found is
# remembered.


MAX_ASKED: Final = 16
"""Stores asked at the same time."""

_log = logging.getLogger("dafka_spark")

T = TypeVar("T")


Answer = tuple[StoreLocation, T]
"""Where a store is, and what it has answered."""


@dataclass(slots=True)
class _Store:
    """What is known of one store; ``location`` only while it answers, ``failure`` while not."""

    announced: tuple[str, ...]
    location: StoreLocation | None = None
    described_at: float = -math.inf
    failure: StoreUnreachableError | None = None
    failing_since: float = math.inf
    retry_at: float = -math.inf


class StoreRegistry:
    """The stores that a mesh tells of.  Thread-safe.

    Attributes:
        others: stores without Flight, which the mesh alone reaches.
        updated_at: when the mesh was asked last, on the clock ``time.monotonic``.
    """

    def __init__(self, locations: Sequence[StoreLocation] = (), *, keys: KeyFiles) -> None:
        self._keys = keys
        self.others: list[str] = []
        self.updated_at = -math.inf
        self._stores = {each.store: _Store(each.locations, each) for each in locations}

    @property
    def locations(self) -> list[StoreLocation]:
        """Where the stores are that have described themselves and answered since, by name."""
        found = [each.location for each in self._stores.values() if each.location]
        return sorted(found, key=lambda location: location.store)

    def update(self, endpoints: Mapping[str, tuple[str, ...]], stores: Sequence[str]) -> None:
        """Takes what a reader of the mesh has heard: endpoints by store, and all stores."""
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
        timeout_s: float = timing.ANSWER_S,
        max_age_s: float = timing.DESCRIPTION_S,
        again: bool = False,
    ) -> list[Answer[T]]:
        """Has every store do some work, all at the same time; the answers of those that do it.

        ``max_age_s`` is how old a store's description of itself may be.  With ``again`` also the
        stores are asked that did not answer a moment ago.
        """
        now = time.monotonic()
        due = [each for each in sorted(self._stores.items()) if again or now >= each[1].retry_at]

        def ask_one(named: tuple[str, _Store]) -> Answer[T] | None:
            return _ask_one(*named, self._keys, work, timeout_s, max_age_s)

        if len(due) < 2:
            found = [ask_one(each) for each in due]
        else:
            with ThreadPoolExecutor(min(len(due), MAX_ASKED)) as pool:
                found = list(pool.map(ask_one, due))
        return [each for each in found if each is not None]

    def failures(self, longer_than_s: float = 0.0) -> list[StoreUnreachableError]:
        """Why stores have not answered for so long."""
        before = time.monotonic() - longer_than_s
        stores = self._stores.values()
        return [each.failure for each in stores if each.failure and each.failing_since <= before]

    def silent(self, at_most_s: float = math.inf) -> list[str]:
        """The stores that did not answer when they were asked last, for at most so long.

        The mesh gives up a store that is gone after some seconds; until then it may be about to
        come back, with more than others have.
        """
        after = time.monotonic() - at_most_s
        stores = sorted(self._stores.items())
        return [name for name, each in stores if each.failure and each.failing_since >= after]


def _ask_one(
    name: str,
    store: _Store,
    keys: KeyFiles,
    work: Callable[[StoreClient], T],
    timeout_s: float,
    max_age_s: float,
) -> Answer[T] | None:
    now = time.monotonic()
    try:
        location = store.location
        if location is None or now >= store.described_at + max_age_s:
            location = store.location = _described(name, store.announced, keys, timeout_s)
            store.described_at = now
        with connections.lend_client(location, keys) as client:
            answer = location, work(client)
    except (StoreUnreachableError, ConfigError) as error:
        if isinstance(error, ConfigError):  # what it announces is no location
            error = StoreUnreachableError(name, str(error))
        if store.failure is None:
            store.failing_since = now
            _log.warning("%s", error)
        store.failure = error
        store.retry_at = time.monotonic() + timing.RETRY_S
        store.location = None
        return None
    store.failure, store.failing_since = None, math.inf
    return answer


def _described(
    store: str, announced: tuple[str, ...], keys: KeyFiles, timeout_s: float
) -> StoreLocation:
    with connections.lend_client(StoreLocation(store, announced), keys) as client:
        location = client.describe(timeout_s=timeout_s)
    if location.store != store:
        raise StoreUnreachableError(store, f"store {location.store} answers at {announced[0]}")
    return location.found_at(announced)
