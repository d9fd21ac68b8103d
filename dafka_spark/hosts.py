"""The stores that can host what a task writes, as its process knows them.

They are looked for in the mesh once, by the first task of a process, and again when one of them
fails: a micro-batch of a few rows has no time for that.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from typing import Final

from dafka_core.columnar.client import StoreClient
from dafka_core.columnar.places import Place
from dafka_core.errors import NoStoreError, StoreUnreachableError
from dafka_spark import connections
from dafka_spark.options import Via

FIND_S: Final = 2.0
"""Stores that are there are heard of in less; without any the rows are published to the mesh."""

DESCRIBE_S: Final = 5.0
"""The longest wait for one store to say where it is."""

_lock = threading.Lock()
_known: dict[Via, list[Place]] = {}


def _forget() -> None:
    global _lock  # noqa: PLW0603 -- a forked child's own: the parent's may be held
    _lock = threading.Lock()
    _known.clear()


os.register_at_fork(after_in_child=_forget)


class Hosts:
    """Clients of the stores of one mesh, for one task; to be closed."""

    def __init__(self, via: Via, topic: str) -> None:
        self._via = via
        self._topic = topic
        self._stack = ExitStack()

    def known(self) -> list[StoreClient]:
        """Those found before, if there are any; else ``anew``."""
        with _lock:
            places = _known.get(self._via)
        return self._clients(places) if places else self.anew()

    def anew(self) -> list[StoreClient]:
        """Those that are there now, perhaps none."""
        endpoints: dict[str, tuple[str, ...]] = {}
        with suppress(NoStoreError), connections.lend(self._via) as source:
            # The answer is of no interest; once it is there, every store has been heard of.
            with suppress(NoStoreError):
                source.partitions([self._topic], timeout_s=FIND_S)
            endpoints = source.endpoints()
        places = []
        for store, locations in sorted(endpoints.items()):
            with (
                suppress(StoreUnreachableError),
                connections.lend_client(Place(store, locations)) as client,
            ):
                places.append(client.describe(timeout_s=DESCRIBE_S))
        with _lock:
            _known[self._via] = places
        return self._clients(places)

    def close(self) -> None:
        """Gives the clients back."""
        self._stack.close()

    def _clients(self, places: list[Place]) -> list[StoreClient]:
        return [self._stack.enter_context(connections.lend_client(place)) for place in places]
