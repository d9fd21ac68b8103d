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
from dafka_core.nodes.store_handle import StoreHandle
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

    def __init__(self, store: StoreHandle) -> None:
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
        for store, locations in self._endpoints().items():
            try:
                location, keys = StoreLocation(store, locations), self._store.options.keys
                with closing(StoreClient(location, keys)) as client:
                    found += client.heads([OFFSETS_TOPIC], timeout_s=ASK_S)
            except DafkaError as error:
                _log.info("store %s is not asked for committed offsets: %s", store, error)
        return {tp: info.end for tp, info in merge_heads(found).items()}

    def _endpoints(self) -> dict[str, tuple[str, ...]]:
        until = time.monotonic() + MEET_S
        while True:
            found = self._store.endpoints
            if self._store.stores_here <= found.keys() or time.monotonic() > until:
                return found
            time.sleep(STEP_S)
