"""The console's server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dafka_console.access import ConsoleLogin
from dafka_console.api import Api
from dafka_console.cluster_view import ClusterView
from dafka_console.options import DEFAULT_PORT, ConsoleOptions
from dafka_console.producing import Producers
from dafka_core.config.node_options import SecurityOptions
from dafka_core.flight.store_location import StoreLocation
from dafka_core.ops.findings import LIFE, Finding, ok, problem
from dafka_core.ops.health_routes import health_routes
from dafka_core.ops.http_server import Access, HttpServer, Login
from dafka_core.security.web_access import Door
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import host_port, is_loopback

MOST_CONNECTIONS: Final = 256
"""Connections at a time. Beyond it a connection without a request is closed; if there is none, the
new one is refused."""


class Console(ProcessBound):
    """Serves a cluster to browsers from construction until ``close``.

    Args:
        options: how to join the mesh, as for ``Reader``.
        locations: stores to show instead of those of a mesh; without producing records.
        console: see ``ConsoleOptions``.

    Attributes:
        view: the cluster's state.
        url: its address.

    Raises:
        ConfigError: an option is invalid, or the address can't be bound.
        TowerNotFoundError: no tower answered.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        locations: Sequence[StoreLocation] = (),
        **console: Any,
    ) -> None:
        config = ConsoleOptions.build(console)
        where = host_port(config.listen, DEFAULT_PORT)
        is_here = is_loopback(where.host)
        is_open = not config.token_file and (is_here or _security(options).may_be_open)
        self.is_open = is_open and not is_here
        """True if other machines may use it without a token."""
        door = None if is_open else Door("the console", "token_file", config.token_file)
        self.token = "" if door is None or config.token_file else door.token
        """A generated token."""
        self._server = HttpServer("console", "listen", where, MOST_CONNECTIONS)
        self.port = self._server.address.port
        self.url = f"{self._server.address.url}/"
        try:
            self.view = ClusterView(options, locations, interval_s=config.interval_ms / 1000)
        except BaseException:
            self._server.close()
            raise
        can_produce = not (config.read_only or locations)
        self._producers = Producers(_of_producers(options)) if can_produce else None
        uris = [uri for each in locations for uri in each.locations[:1]]
        app = Api(self.view, options, uris, self._producers).app()
        app.routes.extend(health_routes(self._findings))
        login = Login(None) if door is None else ConsoleLogin(door, self.port)
        methods = ("GET", "HEAD", "POST")
        try:
            self._server.start(
                Access(app, where.host, login, config.names, methods, read_only=config.read_only)
            )
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._server.wait(timeout_s)

    def close(self) -> None:
        """Close the console and leave the mesh; may be repeated."""
        self.view.close()  # first, since event streams end with it
        self._server.close()
        if self._producers is not None:
            self._producers.close()

    def _findings(self) -> list[tuple[str, str, Finding]]:
        if self.view.closed:
            finding = problem(LIFE, "the console is closed", "start it again")
        elif not any(each.here for each in self.view.snapshot.stores):
            finding = problem("stores", "no store responds", "'dafka doctor' names the cause")
        else:
            finding = ok("stores", "stores respond")
        return [("console", self.url, finding)]


def _security(options: Mapping[str, Any]) -> SecurityOptions:
    names = {row.name for row in SecurityOptions.table()}
    return SecurityOptions.build({name: options[name] for name in names & options.keys()})


def _of_producers(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "max_queued_bytes"}
