"""The HTTP server of the console and of metrics: access, limits of connections, and its thread.

A page of another site can make its visitor's browser send requests to the visitor's own machine,
and read the answers through DNS rebinding. So requests must use one of the server's names, and
changes must come from its own pages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Final
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dafka_core.errors import NodeFailedError
from dafka_core.nodes.node import NodeThread
from dafka_core.security.web_access import WHY, Answer, Door, bearer, is_own_name
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import LOCALHOST, HostPort, is_loopback, listen_for

MAX_BODY_BYTES: Final = 8 << 20  # largest body: a hand-written record, or a file

MAX_HEADER_BYTES: Final = 32 << 10

FORM: Final = "application/x-www-form-urlencoded"

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` for the server's pages, and for addresses typed by users."""

_OTHER_SITE: Final = "a page of another site has asked for this"

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer: nothing is loaded from elsewhere, and no record becomes a script."""


def refusal(status: int, why: str, **headers: str) -> Response:
    """Return an answer that refuses a request; an unread body would be the next request."""
    return JSONResponse({"error": why}, status, {"connection": "close", **headers})


class Login:
    """Admits requests with the token; without a door all.

    Args:
        open_paths: answered without a token, too, and ``scope["is_known"]`` is False then.
    """

    FORM_PATH = ""  # the path of a login form, if there is one
    MAX_FORM_BYTES = 0  # the limit of its body

    def __init__(self, door: Door | None, open_paths: Iterable[str] = ()) -> None:
        self._door = door
        self._open_paths = frozenset(open_paths)

    def judge(self, request: Request) -> Answer:
        """Return whether a request has the token."""
        if self._door is None:
            return Answer.RIGHT
        tokens = [bearer(each) for each in request.headers.getlist("authorization")]
        if len(tokens) != 1 or tokens[0] is None:
            return Answer.WRONG
        return self._door.judge(tokens[0], client_of(request))

    async def refused(self, request: Request) -> Response | None:
        """Return the answer to a request without access."""
        answer = self.judge(request)
        request.scope["is_known"] = answer is Answer.RIGHT
        is_open = request.scope["path"] in self._open_paths and answer is Answer.WRONG
        if answer is Answer.RIGHT or is_open:
            return None
        return refusal(answer, WHY[answer], **{"www-authenticate": "Bearer"})


def client_of(request: Request) -> str:
    """Return the client's address."""
    return request.client.host if request.client else "?"


class Access:
    """Refuses requests from elsewhere; passes on all others, and adds safe headers.

    Args:
        app: the inner application.
        host: the host on which the server listens.
        login: admits requests.
        names: further names of its machine; None if other machines may use any.
        methods: the methods that are served.
        read_only: whether changes are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        login: Login,
        names: Iterable[str] | None,
        methods: Iterable[str] = ("GET", "HEAD"),
        *,
        read_only: bool = False,
    ) -> None:
        self._app = app
        self._is_local = is_loopback(host)
        self._login = login
        self._names = {host.lower(), LOCALHOST, *(names or ())}
        self._takes_any_name = names is None and not self._is_local
        self._remedy = "use its address"
        if names is not None:
            self._remedy += ", or start it with --names and this name"
        self._methods = tuple(methods)
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(h for h in more if h[0] not in own)]
            await send(message)

        request = Request(scope, receive)
        refused = self._refused(request) or await self._login.refused(request)
        await (refused or self._app)(scope, receive, send_safely)

    def _refused(self, request: Request) -> Response | None:
        headers, method = request.headers, request.method
        hosts = headers.getlist("host")
        if not self._takes_any_name and not (
            len(hosts) == 1 and is_own_name(hosts[0], self._names, is_local=self._is_local)
        ):
            remedy = self._remedy
            return refusal(421, f"the server was asked for by a name that is not its own: {remedy}")
        if method not in self._methods:
            return refusal(405, f"only {', '.join(self._methods)} are served")
        path, sites = request.scope["path"], headers.getlist("sec-fetch-site")
        is_page = method != "POST" and not path.startswith(("/api/", "/events"))
        if not is_page and not OWN_SITES.issuperset(sites):
            return refusal(403, _OTHER_SITE)
        return self._refused_post(request, path) if method == "POST" else None

    def _refused_post(self, request: Request, path: str) -> Response | None:
        headers = request.headers
        is_form = path == self._login.FORM_PATH
        if self._read_only and not is_form:
            return refusal(403, "the console was started with --read-only")
        if not all(_is_at(origin, headers["host"]) for origin in headers.getlist("origin")):
            return refusal(403, _OTHER_SITE)
        kinds = [each.partition(";")[0].strip().lower() for each in headers.getlist("content-type")]
        wanted = FORM if is_form else "application/json"
        if kinds != [wanted]:
            return refusal(415, f"the body must be of Content-Type: {wanted}")
        sizes = headers.getlist("content-length")
        if len(sizes) != 1 or not sizes[0].isdigit():
            return refusal(411, "the request must say how long its body is")
        most = self._login.MAX_FORM_BYTES if is_form else MAX_BODY_BYTES
        if int(sizes[0][:20]) > most:
            return refusal(413, f"the body must have at most {most:,} bytes")
        return None


def _is_at(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


REQUEST_S: Final = 10.0  # time for a complete request, from the connection or the previous answer


class Connection(H11Protocol):
    """A connection that closes if no request arrives in time.

    Above the limit of connections the address with most idle ones loses its oldest.
    """

    ends_s = inf  # that deadline on the loop's clock; infinite during an answer
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a client, or close an idle connection for it."""
        super().connection_made(transport)
        if len(self.connections) >= (self.limit_concurrency or inf):
            idle = [each for each in self.connections if isinstance(each, Connection)]
            idle = [each for each in idle if each.ends_s < inf]
            counts = Counter(each.client and each.client[0] for each in idle)
            if idle:
                most = max(counts.values())
                mine = (each for each in idle if counts[each.client and each.client[0]] == most)
                min(mine, key=lambda each: each.ends_s).end()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_watching()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Update the deadline: bytes have arrived, or an answer is complete."""
        super().handle_events()
        self._watch()

    def end(self) -> None:
        """Close the connection at once."""
        self._stop_watching()
        self.transport.abort()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.end)
            self.ends_s = self._timer.when()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.ends_s = None, inf


START_S: Final = 30.0  # time for the start
POLL_S: Final = 0.01  # interval at which the start is checked
END_S: Final = 2  # time for pending answers when the server closes


class HttpServer(ProcessBound):
    """Serves an application in a thread, from ``start`` until ``close``.

    Args:
        what: the name of the thread and of the log: ``console``.
        option: the option with the address, for errors.
        most_connections: at a time.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(self, what: str, option: str, where: HostPort, most_connections: int) -> None:
        self._what = what
        self._most = most_connections
        self._socket = listen_for(option, where, most_connections)
        self.address = where._replace(port=self._socket.getsockname()[1])  # where it listens
        self._thread = NodeThread(f"dafka-{what}", self._serve)
        self._server: uvicorn.Server | None = None
        self._failure = ""

    def start(self, app: ASGIApp) -> None:
        """Serve an application; raise NodeFailedError if the server has not started."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,  # trust the connection's address, not a header
            ws="none",
            http=Connection,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            limit_concurrency=self._most,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=END_S,
        )
        server = self._server = uvicorn.Server(config)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not server.started and time.monotonic() < deadline:
            if self._thread.join(POLL_S):
                break
        if not server.started:
            self.close()
            raise NodeFailedError(self._what, self._failure or "it did not start")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop serving; may be repeated."""
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()

    def on_forked(self) -> None:
        """Close a forked child's copy of the socket, which would accept clients in vain."""
        if "_socket" in vars(self):
            self._socket.close()

    def _serve(self) -> None:
        assert self._server is not None
        try:
            self._server.run(sockets=[self._socket])
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- who waits for it is told
            self._failure = f"{type(error).__name__}: {error}"
            log = logging.getLogger(f"dafka.{self._what}")
            log.error("the HTTP server has ended: %s", self._failure)
