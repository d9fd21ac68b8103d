"""Waits until the store has what other stores have of committed offsets."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import Final

from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.kafka.groups.group_records import OFFSETS_TOPIC
from dafka_core.nodes.store import Store
from dafka_core.records import TopicPartition, merge_heads

ASK_S: Final = 2.0
"""How long another store may take to answer: one that does not is away, or about to be."""

WAIT_S: Final = 20.0
"""How long what others have may take to come; after that a gateway goes on with what it has."""

MEET_S: Final = 5.0
"""How long a store that is there may take to say where it can be asked; a C store never does."""

STEP_S: Final = 0.05

_log: Final = logging.getLogger("dafka.kafka")


class OtherHeads:
    """How far the stores that are there are with what gateways write of groups."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def wait_for(self) -> None:
        """Waits until this store is as far as the others.

        Raises:
            DafkaError: the store has ended.
        """
        deadline = time.monotonic() + WAIT_S
        for tp, end in self._ends().items():
            while self._store.log.end(tp) < end:
                if time.monotonic() > deadline:
                    _log.warning("%s: other stores have more, which does not come", tp)
                    break
                time.sleep(STEP_S)

    def _ends(self) -> dict[TopicPartition, int]:
        found = []
        for location in self._locations():
            try:
                with closing(StoreClient(location)) as client:
                    found += client.heads([OFFSETS_TOPIC], timeout_s=ASK_S)
            except DafkaError as error:
                _log.info("store %s is not asked for committed offsets: %s", location.store, error)
        return {tp: info.end for tp, info in merge_heads(found).items()}

    def _locations(self) -> list[StoreLocation]:
        """Those of the other stores, as soon as they have said where they serve Arrow Flight."""
        store = self._store
        if not store.locations:
            return []
        until = time.monotonic() + MEET_S
        with closing(StoreClient(StoreLocation(store.address, store.locations))) as client:
            while True:
                found = [
                    each for each in client.stores(timeout_s=ASK_S) if each.store != store.address
                ]
                unmet = store.stores_here - {each.store for each in found}
                if not unmet or time.monotonic() > until:
                    return found
                time.sleep(STEP_S)
