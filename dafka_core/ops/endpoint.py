"""The HTTP endpoint of ``/metrics``, ``/healthz`` and ``/readyz``, and access to it.

Whoever asks gets an answer while nodes work: asking touches no loop of theirs, and takes none of
their locks for longer than a number.
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


ANOTHER_NAME: Final = "asked for by a name that others may point here: use 127.0.0.1 or localhost"

_log: Final = logging.getLogger("dafka.metrics")


class Visitors:
    """Anybody on this machine, and who says the token; anybody at all if that is meant.

    Args:
        host: where it is listened.

    Raises:
        ConfigError: other machines would reach it without a token, or its file is wrong.
    """

    def __init__(self, host: str, config: MetricsOptions, security: SecurityOptions) -> None:
        self._is_local = is_loopback(host)
        self._door: Door | None = None
        if config.metrics_token_file:
            self._door = Door("metrics", "metrics_token_file", config.metrics_token_file)
        elif not self._is_local:
            if not security.may_be_open:
                why = (
                    f"opens {host} to other machines, and whoever reaches it reads names of topics "
                    "and nodes, and their numbers: set metrics_token_file ('dafka keys token FILE' "
                    "makes one), or, if everybody there is trusted, insecure (or "
                    f"{INSECURE_ENVIRONMENT}=true in the environment)"
                )
                raise ConfigError("metrics", config.metrics, why)
            extra = {"event": "open_port"}
            _log.warning("metrics at %s: whoever reaches them reads them", host, extra=extra)

    def refusal(self, environ: Mapping[str, Any]) -> tuple[HTTPStatus, str] | None:
        """Why a request is not answered, if it is not."""
        # A page elsewhere may have its visitor's browser ask by a name that it points here.
        asked = environ.get("HTTP_HOST")
        if self._is_local and asked and not is_own_name(asked, (LOCALHOST,), is_local=True):
            return HTTPStatus.MISDIRECTED_REQUEST, ANOTHER_NAME
        if self._door is None:
            return None
        said = bearer(environ.get("HTTP_AUTHORIZATION", ""))
        address = str(environ.get("REMOTE_ADDR", "?"))
        found = Answer.WRONG if said is None else self._door.judge(said, address)
        return None if found is Answer.RIGHT else (HTTPStatus(found), WHY[found])


MAX_REQUESTS: Final = 16
"""At one time.  A further one takes the place of a connection without a request, if there is one;
it is closed otherwise.  A few programs ask, each every few seconds."""

REQUEST_TIMEOUT_S: Final = 5.0
"""Within this time a client has to send its request, all of it, and then to take the answer."""

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

HELP: Final = """Dafka
/metrics  numbers for Prometheus
/healthz  200 as long as the nodes of this process run, else 503
/readyz   200 when they do what they are there for, else 503; both say why, as JSON with ?json
"""

_HEALTH: Final = MappingProxyType(
    {"/healthz": (is_alive, ("ok", "failed")), "/readyz": (is_ready, ("ready", "not ready"))}
)
_CHALLENGE: Final = (("WWW-Authenticate", "Bearer"),)


class MetricsEndpoint(ProcessBound):
    """An HTTP endpoint with the metrics of nodes, until ``close``; it does not keep nodes alive.

    Args:
        listen: ``[HOST:]PORT``; loopback without a host, and port 0 lets the system choose.
        topics: how many of a store's topics have their own metrics.
        token_file: a file with the token of all requests; required if other machines can connect.
        insecure: other machines may read everything without a token.

    Raises:
        ConfigError: it cannot listen there, or extra ``metrics`` is not installed.
    """

    def __init__(
        self,
        listen: str = "0",
        *,
        topics: int | None = None,
        token_file: str = "",
        insecure: bool = False,
    ) -> None:
        given = {"metrics_topics": topics, "metrics_token_file": token_file or None}
        said = {name: value for name, value in given.items() if value is not None}
        config = MetricsOptions.build({"metrics": listen, **said})
        where = host_port(str(config.metrics))
        visitors = Visitors(where.host, config, SecurityOptions(insecure=insecure))
        self._nodes = WatchedNodes(config.metrics_topics)
        self._server = _listening(where, self._nodes, visitors)
        self.address = where._replace(port=self._server.server_port)
        """Where it listens."""
        self._thread = NodeThread("dafka-metrics", self._server.serve_until_closed)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return the URL of the endpoint."""
        return self.address.url

    def add(self, *nodes: Node) -> None:
        """Add nodes.

        Raises:
            ConfigError: a node of this kind has no metrics.
        """
        self._nodes.add(*nodes)

    def expect(self, what: str) -> None:
        """Says that a node is being made: the process runs, and is not ready."""
        self._nodes.expect(what)

    def close(self) -> None:
        """Close the endpoint; may be called twice."""
        self._server.end()
        self._thread.join()

    def on_forked(self) -> None:
        """Closes a forked child's copy of the socket: else it would answer nobody."""
        if "_server" in vars(self):
            self._server.socket.close()


def serve_metrics(
    *nodes: Node,
    listen: str = "0",
    topics: int | None = None,
    token_file: str = "",
    insecure: bool = False,
) -> MetricsEndpoint:
    """Serve metrics of nodes for Prometheus, until the returned endpoint is closed.

    Args:
        nodes: towers, stores, producers, consumers or gateways of this process.
        listen, topics, token_file, insecure: see ``MetricsEndpoint``.

    Raises:
        ConfigError: it cannot listen there, a node of this kind has no metrics, or extra
            ``metrics`` is not installed.
    """
    endpoint = MetricsEndpoint(listen, topics=topics, token_file=token_file, insecure=insecure)
    try:
        endpoint.add(*nodes)
    except BaseException:
        endpoint.close()
        raise
    return endpoint


def _listening(where: HostPort, nodes: WatchedNodes, visitors: Visitors) -> _Server:
    try:
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 -- an extra

        from dafka_core.ops.collector import registry_of  # noqa: PLC0415 -- it imports that
    except ImportError:
        why = "needs prometheus-client: pip install 'dafka-spark[metrics]'"
        raise ConfigError("metrics", str(where), why) from None
    listener = listen_for("metrics", where, MAX_REQUESTS)
    return _Server(listener, nodes, visitors, make_wsgi_app(registry_of(nodes)))


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, and not too many of them."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        nodes: WatchedNodes,
        visitors: Visitors,
        numbers: WSGIApplication,
    ) -> None:
        self._lock = threading.Lock()
        self._asking: dict[socket.socket, tuple[str, float]] = {}  # from where and since when
        self._answered: set[socket.socket] = set()
        self._nodes = nodes
        self._visitors = visitors
        self._numbers = numbers
        self._scrape = threading.Lock()
        self._wanted = True
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # Not by ``server_bind``, which asks a name server for this machine's name.
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
        """Starts a thread, if there is a place or one can be had."""
        with self._lock:
            if len(self._asking) + len(self._answered) >= MAX_REQUESTS:
                self._end_one_that_asks()
            has_place = len(self._asking) + len(self._answered) < MAX_REQUESTS
            if has_place:
                self._asking[request] = (str(client_address[0]), time.monotonic())
        if has_place:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def has_asked(self, request: socket.socket) -> None:
        """A connection has sent its request: it keeps its place until that is answered."""
        with self._lock:
            if self._asking.pop(request, None) is not None:
                self._answered.add(request)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection, whose place is free then."""
        with self._lock:
            self._asking.pop(request, None)
            self._answered.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends those that took too long to ask; the server calls it again and again."""
        with self._lock:
            before = time.monotonic() - REQUEST_TIMEOUT_S
            for each in [each for each, (_, since) in self._asking.items() if since < before]:
                self._end(each)

    def _end_one_that_asks(self) -> None:
        """Ends the oldest connection without a request, of the address with most of them."""
        count = Counter(address for address, _ in self._asking.values())
        for busiest, _ in count.most_common(1):
            self._end(next(each for each, (at, _) in self._asking.items() if at == busiest))

    def _end(self, request: socket.socket) -> None:
        """Has the thread that reads a request come to its end, under the lock."""
        del self._asking[request]
        with contextlib.suppress(OSError):  # its client may have gone
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client has gone, or sent none of HTTP: nobody need hear of it."""
        _log.debug("a request failed", exc_info=True)

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
        if method != "GET":
            return _respond(start, HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered\n")
        refusal = self._visitors.refusal(environ)
        judged = _HEALTH.get(path)
        if judged is not None and (refusal is None or refusal[0] is HTTPStatus.UNAUTHORIZED):
            return self._tell(environ, start, *judged, in_full=refusal is None)
        if refusal is not None:
            return _respond(start, refusal[0], f"{refusal[1]}\n", TEXT, _CHALLENGE)
        match path:
            case "/metrics":
                with self._scrape:  # two at a time would cost twice as much, and gain nothing
                    return self._numbers(environ, start)
            case "/":
                return _respond(start, HTTPStatus.OK, HELP)
        return _respond(start, HTTPStatus.NOT_FOUND, HELP)

    def _tell(
        self,
        environ: WSGIEnvironment,
        start: StartResponse,
        judge: Callable[[list[Finding]], bool],
        words: tuple[str, str],
        *,
        in_full: bool,
    ) -> Iterable[bytes]:
        """Whether all is well; in full also what has been found, which names nodes and topics."""
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
            told = json.dumps({"status": status, "findings": facts}, indent=1)
            return _respond(start, code, f"{told}\n", JSON)
        lines = [
            f"{finding.severity}: {kind} {name}: {finding}"
            for kind, name, finding in found
            if not good or finding.severity is not Severity.OK
        ]
        return _respond(start, code, "".join(f"{line}\n" for line in (status, *lines)))


class _Handler(WSGIRequestHandler):
    """Reads one request; logs none: one comes each second."""

    timeout = REQUEST_TIMEOUT_S  # of each piece
    server: _Server

    def parse_request(self) -> bool:
        """Reads the request, and says so: the connection has a place of its own from then on."""
        is_one = super().parse_request()
        self.server.has_asked(self.connection)
        return is_one

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
