"""The interface by which extensions work with a running store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dafka_core.config.node_options import StoreOptions
    from dafka_core.nodes.append_queue import AppendQueue
    from dafka_core.nodes.deletions import Deletions
    from dafka_core.nodes.maintenance import RetentionThread
    from dafka_core.storage import Log


class StoreHandle(Protocol):
    """A running ``Store``.  All parts are thread-safe; after its end they raise DafkaError."""

    @property
    def address(self) -> str:
        """The store's address, which lasts as long as its directory."""

    @property
    def options(self) -> StoreOptions:
        """The options that the store was started with; ``keys`` are its keys."""

    @property
    def log(self) -> Log:
        """The records, for reading: ``partitions``, ``read``, ``snapshot`` and ``changes``."""

    @property
    def append_queue(self) -> AppendQueue:
        """The queue of appends: ``put`` returns a future that completes when records are on disk.

        ``append`` of its module appends to a partition of the store's own.
        """

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """The Arrow Flight locations of the other stores in the mesh, by address."""

    @property
    def known_stores(self) -> tuple[str, ...]:
        """The addresses of all other stores that are known, in the mesh or not."""

    @property
    def stores_here(self) -> frozenset[str]:
        """The addresses of the known stores that are in the mesh now."""

    @property
    def retention_control(self) -> RetentionThread:
        """The retention rules of the store: ``rules`` returns and ``replace`` changes them."""

    @property
    def deletions(self) -> Deletions:
        """Deletion of topics: ``delete`` deletes the records here and at the other stores."""
