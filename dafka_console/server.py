"""The console's server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any, Final

import pyarrow as pa

from dafka_console.access import ConsoleLogin
from dafka_console.api import Api
from dafka_console.cluster_view import ClusterView
from dafka_console.options import DEFAULT_PORT, ConsoleOptions
from dafka_console.producing import Producers
from dafka_core.config.node_options import SecurityOptions
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import escape
from dafka_core.ops.findings import Finding, ok, problem
from dafka_core.ops.http_server import Access, HttpServer, Login
from dafka_core.ops.metric_declarations import Metric, gauge
from dafka_core.ops.node_routes import node_routes
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.ops.watched_nodes import WatchedNodes
from dafka_core.queries.query_lag import FINISHED, LATE, QueryLag
from dafka_core.security.web_access import Door
from dafka_core.system.hosts import host_port, is_loopback

MOST_CONNECTIONS: Final = 256
"""Connections at a time. Beyond it a connection without a request is closed; if there is none, the
new one is refused."""


METRICS: Final[tuple[Metric, ...]] = (
    gauge(
        "query_records_behind",
        lambda console: console.of_queries(lambda lag: lag.records_behind),
        "unread records of a query that has not finished",
        "query",
    ),
    gauge(
        "query_seconds_behind",
        lambda console: console.of_queries(lambda lag: lag.seconds_behind),
        "age of the oldest of them",
        "query",
    ),
    gauge(
        "query_late",
        lambda console: console.of_queries(lambda lag: lag.state == LATE),
        "1 after three missing reports: it was stopped, it failed, or no store takes them",
        "query",
    ),
)


class Console(ExtensionNode):
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
        self, options: Mapping[str, Any], locations: Sequence[StoreLocation] = (), **console: Any
    ) -> None:
        config = ConsoleOptions.build(console)
        security = SecurityOptions.build(SecurityOptions.declared_in(options))
        where = host_port(config.listen, DEFAULT_PORT)
        is_here = is_loopback(where.host)
        is_open = not config.token_file and (is_here or security.may_be_open)
        self.admits_all = is_open and not is_here
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
        # Arrow imports pandas, if installed, at its first use: do so before a search waits for it.
        Thread(target=pa.array, args=([0],), daemon=True).start()
        can_produce = not (config.read_only or locations)
        own = {name: each for name, each in options.items() if name != "max_queued_bytes"}
        self._producers = Producers(own) if can_produce else None
        uris = [uri for each in locations for uri in each.locations[:1]]
        app = Api(self.view, options, uris, self._producers).app()
        nodes = WatchedNodes(0)
        nodes.add(self)
        app.routes.extend(node_routes(nodes))
        login = Login(None) if door is None else ConsoleLogin(door, self.port)
        methods = ("GET", "HEAD", "POST")
        try:
            self._server.start(
                Access(app, where.host, login, config.names, methods, read_only=config.read_only)
            )
        except BaseException:
            self.close()
            raise
        self.is_open = True

    metrics = METRICS

    @property
    def name(self) -> str:
        """The address, as a label of metrics."""
        return str(self._server.address)

    def findings(self) -> list[Finding]:
        """Return whether it has a cluster to show."""
        if any(each.here for each in self.view.snapshot.stores):
            return [ok("stores", "stores respond")]
        return [problem("stores", "no store responds", "'dafka doctor' names the cause")]

    def of_queries(self, read: Callable[[QueryLag], float | None]) -> dict[str, float]:
        """Read a number of each query that has not finished; of several runs the largest."""
        found: dict[str, float] = {}
        for lag in self.view.snapshot.queries:
            value = None if lag.state == FINISHED else read(lag)
            if value is not None:
                name = escape(lag.query)
                found[name] = max(value, found.get(name, value))
        return found

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._server.wait(timeout_s)

    def close(self) -> None:
        """Close the console and leave the mesh; may be repeated."""
        self.is_open = False
        self.view.close()  # first, since event streams end with it
        self._server.close()
        if self._producers is not None:
            self._producers.close()
