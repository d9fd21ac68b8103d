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
    """A running ``Store``.  All parts are thread-safe; after its end they raise DafkaError.

    Attributes:
        address: the store's address, which lasts as long as its directory.
        options: the options that the store was started with; ``keys`` are its keys.
        log: the records, for reading: ``partitions``, ``read``, ``snapshot`` and ``changes``.
        append_queue: ``append`` writes records to a partition of the store's own; ``put`` returns a
            future that completes when records are on disk.
        retention_control: ``rules`` returns the retention rules, ``replace`` changes them.
        deletions: ``delete`` deletes a topic's records here and at the other stores.
    """

    address: str
    options: StoreOptions
    log: Log
    append_queue: AppendQueue
    retention_control: RetentionThread
    deletions: Deletions

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """The Arrow Flight locations of the other stores in the mesh, by address."""

    @property
    def known_stores(self) -> tuple[str, ...]:
        """The addresses of all other stores that are known, in the mesh or not."""

    @property
    def stores_here(self) -> frozenset[str]:
        """The addresses of the known stores that are in the mesh now."""
