"""The console's server."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import uvicorn

from dafka_console.access import MOST_CONNECTIONS, Access, Connection, Login
from dafka_console.api import Api
from dafka_console.cluster_view import ClusterView
from dafka_console.options import DEFAULT_PORT, ConsoleOptions
from dafka_console.producing import Producers
from dafka_core.config.node_options import SecurityOptions
from dafka_core.errors import NodeFailedError
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes.threads import InterruptibleCondition, NodeThread
from dafka_core.security.web_access import Door
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import host_port, is_loopback, listen_for

START_S: Final = 30.0
MAX_HEADER_BYTES: Final = 32 << 10
END_S: Final = 2
"""Time for pending answers when the console closes."""


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
        self._socket = listen_for("listen", where)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{where._replace(port=self.port).url}/"
        try:
            self.view = ClusterView(options, locations, interval_s=config.interval_ms / 1000)
        except BaseException:
            self._socket.close()
            raise
        can_produce = not (config.read_only or locations)
        self._producers = Producers(_of_producers(options)) if can_produce else None
        uris = [uri for each in locations for uri in each.locations[:1]]
        app = Api(self.view, options, uris, self._producers).app()
        self._changed = InterruptibleCondition()
        self._server = _Server(
            self._changed,
            uvicorn.Config(
                Access(
                    app,
                    where.host,
                    config.names,
                    read_only=config.read_only,
                    login=None if door is None else Login(door, self.port),
                ),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                date_header=False,
                proxy_headers=False,  # trust the connection's address, not a header
                ws="none",
                http=Connection,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=END_S,
            ),
        )
        self._thread = NodeThread("dafka-console", self._serve)
        self._thread.start()
        self._changed.wait_until(lambda: self._server.started or self._failure, START_S)
        if not self._server.started:
            self.close()
            raise NodeFailedError("console", self._failure or "it did not start")

    _failure = ""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._thread.join(timeout_s)

    def close(self) -> None:
        """Close the console and leave the mesh; may be repeated."""
        self.view.close()  # first, since event streams end with it
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        if self._producers is not None:
            self._producers.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- who waits for it is told
            self._failure = f"{type(error).__name__}: {error}"
            logging.getLogger("dafka.console").error("the console has ended: %s", self._failure)
        finally:
            self._changed.notify()


class _Server(uvicorn.Server):
    """Signal the start."""

    def __init__(self, changed: InterruptibleCondition, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._changed = changed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._changed.notify()


def _security(options: Mapping[str, Any]) -> SecurityOptions:
    names = {row.name for row in SecurityOptions.table()}
    return SecurityOptions.build({name: options[name] for name in names & options.keys()})


def _of_producers(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "max_queued_bytes"}
