"""A store's records in bulk: Arrow Flight in front of its log, and what that needs of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dafka_core.node_options import FLIGHT_OFF, StoreOptions
from dafka_core.nodes.addresses import own_host
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.protocol.store_role import StoreRole
from dafka_core.storage import Log

if TYPE_CHECKING:
    from dafka_core.flight.store_location import StoreLocation


class Bulk(Protocol):
    """A service in front of a log, or none."""

    locations: tuple[str, ...]
    """Where it is reached, as URIs."""

    def close(self) -> None:
        """Ends it."""


class NoBulk:
    """``flight_port`` is ``off``: the store is reached over the mesh only."""

    locations: tuple[str, ...] = ()

    def close(self) -> None:
        """Nothing to end."""


class BulkHost:
    """The node as the service sees it (``dafka_core.flight.store_backend.Host``)."""

    def __init__(self, log: Log, puts: AppendQueue, role: StoreRole) -> None:
        self._log = log
        self._role = role
        self._own: list[StoreLocation] = []
        self.put = puts.put
        self.stage = puts.stage
        self.commit = puts.commit
        self.discard = puts.discard
        self.transaction_states = puts.transaction_states
        self.end = puts.end
        self.wait = puts.wait

    def begin(self, locations: tuple[str, ...]) -> StoreLocation:
        """The store's own place, once it is known where it listens."""
        from dafka_core.flight.store_location import StoreLocation  # noqa: PLC0415 -- loads Arrow

        location = StoreLocation.begin(self._role.address, locations, self._log.directory)
        self._own = [location]
        self._role.locations = locations
        return location

    def store_locations(self) -> list[StoreLocation]:
        """The stores that have told where they can be read in bulk, itself first."""
        from dafka_core.flight.store_location import StoreLocation  # noqa: PLC0415 -- loads Arrow

        others = list(self._role.endpoints.items())
        return self._own + [StoreLocation(store, locations) for store, locations in others]


def serve_bulk(log: Log, puts: AppendQueue, role: StoreRole, config: StoreOptions) -> Bulk:
    """Serves the log over Arrow Flight, as ``flight_port`` says, and has the role tell of it.

    Raises:
        ConfigError: the port is not free.
        StoreError: the directory cannot be written.
    """
    if config.flight_port == FLIGHT_OFF:
        return NoBulk()
    # Arrow takes half a second to load; a store without Flight does not need it.
    from dafka_core.flight.server import FlightService  # noqa: PLC0415
    from dafka_core.flight.store_location import socket_path  # noqa: PLC0415

    host = BulkHost(log, puts, role)
    return FlightService(
        log,
        host,
        host.begin,
        bind_host=own_host(config).strip("[]"),
        port=int(config.flight_port),
        socket_path=socket_path(log.directory),
    )
