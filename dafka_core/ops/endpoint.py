"""The HTTP endpoint of ``/metrics``, ``/healthz`` and ``/readyz``, and access to it.

Requests do not disturb nodes: they run outside of the nodes' loops, and hold a lock only to read a
number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dafka_core.config.node_options import INSECURE_ENVIRONMENT, SecurityOptions
from dafka_core.errors import ConfigError
from dafka_core.nodes.threads import NodeThread
from dafka_core.ops.findings import Finding, Severity
from dafka_core.ops.health import is_alive, is_ready
from dafka_core.ops.metrics_options import MetricsOptions
from dafka_core.ops.watched_nodes import WatchedNodes
from dafka_core.security.web_access import WHY, Answer, Door, bearer, is_own_name
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import LOCALHOST, HostPort, host_port, is_loopback, listen_for

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from dafka_core.nodes.node import Node


ANOTHER_NAME: Final = "host name not accepted (DNS rebinding): use 127.0.0.1 or localhost"

_log: Final = logging.getLogger("dafka.metrics")


class Access:
    """Access control: local clients, clients with the token, or all with option ``insecure``.

    Args:
        host: the address at which the endpoint listens.

    Raises:
        ConfigError: other machines would have access without a token, or its file is invalid.
    """

    def __init__(self, host: str, config: MetricsOptions, security: SecurityOptions) -> None:
        self._is_local = is_loopback(host)
        self._door: Door | None = None
        if config.metrics_token_file:
            self._door = Door("metrics", "metrics_token_file", config.metrics_token_file)
        elif not self._is_local:
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

    def refusal(self, environ: Mapping[str, Any]) -> tuple[HTTPStatus, str] | None:
        """Return status and reason if a request is refused."""
        # Against DNS rebinding: a web page may resolve its own name to this address.
        name = environ.get("HTTP_HOST")
        if self._is_local and name and not is_own_name(name, (LOCALHOST,), is_local=True):
            return HTTPStatus.MISDIRECTED_REQUEST, ANOTHER_NAME
        if self._door is None:
            return None
        token = bearer(environ.get("HTTP_AUTHORIZATION", ""))
        address = str(environ.get("REMOTE_ADDR", "?"))
        found = Answer.WRONG if token is None else self._door.judge(token, address)
        return None if found is Answer.RIGHT else (HTTPStatus(found), WHY[found])


MAX_REQUESTS: Final = 16
"""Concurrent connections. A further one replaces a connection that has sent no request, or is
closed. Usually a few programs scrape, each every few seconds."""

REQUEST_TIMEOUT_S: Final = 5.0
"""Time limit for a client to send its whole request, and then to receive the response."""

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

HELP: Final = """Dafka
/metrics  metrics for Prometheus
/healthz  200 if the nodes of this process run, else 503
/readyz   200 if they are ready, else 503; both with reasons, as JSON with ?json
"""

_HEALTH: Final = MappingProxyType(
    {"/healthz": (is_alive, ("ok", "failed")), "/readyz": (is_ready, ("ready", "not ready"))}
)
_CHALLENGE: Final = (("WWW-Authenticate", "Bearer"),)


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
        where = host_port(str(config.metrics))
        access = Access(where.host, config, SecurityOptions(insecure=insecure))
        self._nodes = WatchedNodes(config.metrics_topics)
        self._server = _listening(where, self._nodes, access)
        self.address = where._replace(port=self._server.server_port)
        """The address at which it listens."""
        self._thread = NodeThread("dafka-metrics", self._server.serve_until_closed)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        return self.address.url

    def add(self, *nodes: Node) -> None:
        """Serve the metrics of further nodes.

        Raises:
            ConfigError: a node's kind has no metrics.
        """
        self._nodes.add(*nodes)

    def expect(self, what: str) -> None:
        """Report the process as running but not ready, until ``add``."""
        self._nodes.expect(what)

    def close(self) -> None:
        """Stop serving; may be repeated."""
        self._server.end()
        self._thread.join()

    def on_forked(self) -> None:
        """Close a forked child's copy of the socket, which would accept clients in vain."""
        if "_server" in vars(self):
            self._server.socket.close()


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


def _listening(where: HostPort, nodes: WatchedNodes, access: Access) -> _Server:
    try:
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 -- an extra

        from dafka_core.ops.collector import registry_of  # noqa: PLC0415 -- it imports that
    except ImportError:
        why = "needs prometheus-client: pip install 'dafka-spark[metrics]'"
        raise ConfigError("metrics", str(where), why) from None
    listener = listen_for("metrics", where, MAX_REQUESTS)
    return _Server(listener, nodes, access, make_wsgi_app(registry_of(nodes)))


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per request, up to ``MAX_REQUESTS``."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        nodes: WatchedNodes,
        access: Access,
        metrics: WSGIApplication,
    ) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, tuple[str, float]] = {}
        """Connections without a request so far: address, and since when."""
        self._answered: set[socket.socket] = set()
        self._nodes = nodes
        self._access = access
        self._metrics = metrics
        self._scrape = threading.Lock()
        self._wanted = True
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # Not by ``server_bind``, which queries a name server for this machine's name.
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self.set_app(self._answer)

    def serve_until_closed(self) -> None:
        self.serve_forever(poll_interval=0.5)

    def end(self) -> None:
        if self._wanted:
            self._wanted = False
            self.shutdown()
            self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread unless there are too many that cannot be ended."""
        with self._lock:
            if len(self._waiting) + len(self._answered) >= MAX_REQUESTS:
                self._end_oldest()
            has_place = len(self._waiting) + len(self._answered) < MAX_REQUESTS
            if has_place:
                self._waiting[request] = (str(client_address[0]), time.monotonic())
        if has_place:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def on_request(self, request: socket.socket) -> None:
        """Keep a connection that has sent its request until the response is sent."""
        with self._lock:
            if self._waiting.pop(request, None) is not None:
                self._answered.add(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._waiting.pop(request, None)
            self._answered.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that took too long to send a request; called periodically."""
        with self._lock:
            before = time.monotonic() - REQUEST_TIMEOUT_S
            for each in [each for each, (_, since) in self._waiting.items() if since < before]:
                self._end(each)

    def _end_oldest(self) -> None:
        """End the oldest connection without a request of the address with most of them."""
        count = Counter(address for address, _ in self._waiting.values())
        for busiest, _ in count.most_common(1):
            self._end(next(each for each, (at, _) in self._waiting.items() if at == busiest))

    def _end(self, request: socket.socket) -> None:
        del self._waiting[request]
        with contextlib.suppress(OSError):  # the client may have closed it
            request.shutdown(socket.SHUT_RDWR)  # ends the thread that reads the request

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have gone or do not speak HTTP."""
        _log.debug("a request failed", exc_info=True)

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
        if method != "GET":
            return _respond(start, HTTPStatus.METHOD_NOT_ALLOWED, "only GET is allowed\n")
        refusal = self._access.refusal(environ)
        judged = _HEALTH.get(path)
        if judged is not None and (refusal is None or refusal[0] is HTTPStatus.UNAUTHORIZED):
            return self._health(environ, start, *judged, in_full=refusal is None)
        if refusal is not None:
            return _respond(start, refusal[0], f"{refusal[1]}\n", TEXT, _CHALLENGE)
        match path:
            case "/metrics":
                with self._scrape:  # concurrent scrapes would only slow each other down
                    return self._metrics(environ, start)
            case "/":
                return _respond(start, HTTPStatus.OK, HELP)
        return _respond(start, HTTPStatus.NOT_FOUND, HELP)

    def _health(
        self,
        environ: WSGIEnvironment,
        start: StartResponse,
        judge: Callable[[list[Finding]], bool],
        words: tuple[str, str],
        *,
        in_full: bool,
    ) -> Iterable[bytes]:
        """Respond with the status; ``in_full`` with the findings, which name nodes and topics."""
        found = self._nodes.findings()
        good = judge([finding for _, _, finding in found])
        code = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        status = words[not good]
        if not in_full:
            return _respond(start, code, f"{status}\n")
        accepts = environ.get("HTTP_ACCEPT", "")
        if "json" in environ.get("QUERY_STRING", "") or JSON in accepts:
            facts = [
                {"kind": kind, "node": name, **finding._asdict()} for kind, name, finding in found
            ]
            text = json.dumps({"status": status, "findings": facts}, indent=1)
            return _respond(start, code, f"{text}\n", JSON)
        lines = [
            f"{finding.severity}: {kind} {name}: {finding}"
            for kind, name, finding in found
            if not good or finding.severity is not Severity.OK
        ]
        return _respond(start, code, "".join(f"{line}\n" for line in (status, *lines)))


class _Handler(WSGIRequestHandler):
    """Handles a request; logs it at level debug only, as one may arrive each second."""

    timeout = REQUEST_TIMEOUT_S  # of each read
    server: _Server

    def parse_request(self) -> bool:
        """Read the request, and report it to the server."""
        is_valid = super().parse_request()
        self.server.on_request(self.connection)
        return is_valid

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the library's name
        with contextlib.suppress(Exception):
            _log.debug(format, *args)


def _respond(
    start: StartResponse,
    status: HTTPStatus,
    text: str,
    content_type: str = TEXT,
    more: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    content = text.encode("utf-8", "replace")
    headers = [("Content-Type", content_type), ("Content-Length", str(len(content))), *more]
    start(f"{status.value} {status.phrase}", headers)
    return [content]
