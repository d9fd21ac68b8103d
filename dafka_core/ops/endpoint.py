"""The HTTP endpoint of ``/metrics``, ``/healthz`` and ``/readyz``.

Requests do not disturb nodes: they run outside of the nodes' loops, and hold a lock only to read a
number.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dafka_core.config.node_options import INSECURE_ENVIRONMENT, MetricsOptions, SecurityOptions
from dafka_core.errors import ConfigError
from dafka_core.ops.node_metrics import WatchedNodes
from dafka_core.security.web_access import Door
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import host_port, is_loopback

if TYPE_CHECKING:
    from dafka_core.nodes.node import Node
    from dafka_core.ops.http_server import HttpServer


MOST_CONNECTIONS: Final = 64
"""Connections at a time: usually a few programs scrape, each every few seconds."""

HELP: Final = """Dafka
/metrics  metrics for Prometheus
/healthz  200 if the nodes of this process run, else 503
/readyz   200 if they are ready, else 503; both with reasons, as JSON with ?json
"""

_log: Final = logging.getLogger("dafka.metrics")


class MetricsEndpoint(ProcessBound):
    """Serves metrics and health over HTTP until ``close``; ``serve_metrics`` has the arguments."""

    def __init__(
        self,
        listen: str = "0",
        *,
        topics: int | None = None,
        token_file: str = "",
        insecure: bool = False,
    ) -> None:
        options = {"metrics_topics": topics, "metrics_token_file": token_file or None}
        given = {name: value for name, value in options.items() if value is not None}
        config = MetricsOptions.build({"metrics": listen, **given})
        door = _door(config, SecurityOptions(insecure=insecure))
        self._nodes = WatchedNodes(config.metrics_topics)
        self._server = _served(config, door, self._nodes)
        self.address = self._server.address  # the address at which it listens
        self.url = self.address.url

    def add(self, *nodes: Node) -> None:
        """Serve the metrics of further nodes; raise ConfigError for a kind that has none."""
        self._nodes.add(*nodes)

    def expect(self, what: str) -> None:
        """Report the process as running but not ready, until ``add``."""
        self._nodes.expect(what)

    def close(self) -> None:
        """Stop serving; may be repeated."""
        self._server.close()


def serve_metrics(
    *nodes: Node,
    listen: str = "0",
    topics: int | None = None,
    token_file: str = "",
    insecure: bool = False,
) -> MetricsEndpoint:
    """Serve metrics of nodes for Prometheus until the returned endpoint is closed.

    The endpoint has its ``url``; it adds nodes by ``add(*nodes)``, and does not keep them alive.

    Args:
        nodes: towers, stores, producers, consumers or gateways of this process.
        listen: ``[HOST:]PORT``; the default host is loopback, and port 0 lets the system choose.
        topics: maximum number of a store's topics with their own metrics.
        token_file: contains the token for requests; required if other machines have access.
        insecure: allow other machines access without a token.

    Raises:
        ConfigError: it cannot listen there, a node's kind has no metrics, or extra ``metrics`` is
            not installed.
    """
    endpoint = MetricsEndpoint(listen, topics=topics, token_file=token_file, insecure=insecure)
    try:
        endpoint.add(*nodes)
    except BaseException:
        endpoint.close()
        raise
    return endpoint


def _door(config: MetricsOptions, security: SecurityOptions) -> Door | None:
    """Return what admits requests: None if all clients have access.

    Raises:
        ConfigError: other machines would have access without a token, or its file is invalid.
    """
    if config.metrics_token_file:
        return Door("metrics", "metrics_token_file", config.metrics_token_file)
    host = host_port(str(config.metrics)).host
    if not is_loopback(host):
        if not security.may_be_open:
            why = (
                f"opens {host} to other machines, which could read names of topics and nodes, "
                "and their metrics: set metrics_token_file ('dafka keys token FILE' creates "
                "one), or, if all of the network is trusted, insecure (or "
                f"{INSECURE_ENVIRONMENT}=true in the environment)"
            )
            raise ConfigError("metrics", config.metrics, why)
        extra = {"event": "open_port"}
        _log.warning("metrics at %s are open to the network", host, extra=extra)
    return None


def _served(config: MetricsOptions, door: Door | None, nodes: WatchedNodes) -> HttpServer:
    try:
        # An extra.
        from starlette.applications import Starlette  # noqa: PLC0415
        from starlette.middleware import Middleware  # noqa: PLC0415
        from starlette.middleware.gzip import GZipMiddleware  # noqa: PLC0415
        from starlette.responses import PlainTextResponse  # noqa: PLC0415
        from starlette.routing import Route  # noqa: PLC0415

        from dafka_core.ops.http_server import Access, HttpServer, Login  # noqa: PLC0415
        from dafka_core.ops.node_routes import PROBES, node_routes  # noqa: PLC0415
    except ImportError:
        why = "needs prometheus-client, starlette and uvicorn: pip install 'dafka-spark[metrics]'"
        raise ConfigError("metrics", config.metrics, why) from None
    where = host_port(str(config.metrics))
    server = HttpServer("metrics", "metrics", where, MOST_CONNECTIONS)
    app = Starlette(
        routes=[Route("/", lambda request: PlainTextResponse(HELP)), *node_routes(nodes)],
        middleware=[Middleware(GZipMiddleware, compresslevel=1)],
        exception_handlers={404: lambda request, error: PlainTextResponse(HELP, 404)},
    )
    server.start(Access(app, where.host, Login(door, PROBES), None))
    return server
