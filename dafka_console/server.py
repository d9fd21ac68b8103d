"""The console's server, and logging in to it: a form, a link with the token, and cookies."""

from __future__ import annotations

import hmac
import html
import time
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from dafka_console.api import Api, Producers
from dafka_console.cluster_view import ClusterView
from dafka_console.options import DEFAULT_PORT, ConsoleOptions
from dafka_core.config.node_options import SecurityOptions
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import escape
from dafka_core.ops.findings import LIFE, Finding, ok, problem
from dafka_core.ops.http_server import OWN_SITES, Access, HttpServer, Login, client_of
from dafka_core.ops.metric_declarations import Metric, gauge
from dafka_core.ops.node_metrics import WatchedNodes
from dafka_core.ops.node_routes import PROBES, node_routes
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.queries.query_progress import FINISHED, LATE, QueryLag
from dafka_core.security.web_access import WHY, Answer, Door
from dafka_core.system.hosts import host_port, is_loopback

HOME: Final = "./"
"""The first page, seen from itself and from the form: relative, as all links of the pages are, so
that a reverse proxy may serve the console below any path."""

SESSION_S: Final = 7 * 86_400  # lifetime of the cookie; a new token ends it at once

OPEN_FILES: Final = ("/static/style.css", "/static/icon.svg")
"""Files of the form, served without a login."""

MOST_CONNECTIONS: Final = 256
"""Connections at a time. Beyond it a connection without a request is closed; if there is none, the
new one is refused."""

_FORM: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Dafka</title>
<link rel="icon" href="static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="static/style.css">
</head><body><main id="page"><h1>Dafka</h1>
<form class="card form" method="post" action="login">
<p class="note bad" role="alert">{why}</p>
<label class="field"><span>Token</span>
<input id="token" name="token" type="password" autocomplete="current-password" required></label>
<p><button type="submit" class="primary">Log in</button></p>
<p class="faint">The console printed it when it started, or it is in the file of its option
<code>--token-file</code>.</p></form></main></body></html>
"""

_OF_FORM: Final = {"referrer-policy": "same-origin", "connection": "close"}
"""Without a referrer browsers send a null origin with the form, which would be refused."""


class ConsoleLogin(Login):
    """Checks the cookie or token of browsers and programs.

    Args:
        port: the console's port: cookies are shared by a host's ports, so its name contains the
            port.
    """

    FORM_PATH = "/login"
    MAX_FORM_BYTES = 4 << 10

    def __init__(self, door: Door, port: int) -> None:
        super().__init__(door, (*OPEN_FILES, *PROBES))
        self._signer = door
        self._cookie = f"dafka_console_{port}"

    def judge(self, request: Request) -> Answer:
        """Return whether a request has a valid cookie or token."""
        for each in request.headers.getlist("cookie"):
            try:
                found = SimpleCookie(each).get(self._cookie)
            except CookieError:
                continue
            if found is not None and self._is_session(found.value):
                return Answer.RIGHT
        return super().judge(request)

    async def refused(self, request: Request) -> Response | None:
        """Return the answer to a login, and the form to a page without access."""
        path, headers = request.scope["path"], request.headers
        if path == self.FORM_PATH and request.method == "POST":
            form = (await request.body()).decode("latin-1")  # its length is checked
            return self._enter(form, request) or self.form()
        if path == self.FORM_PATH:  # a reload of the form's target
            return RedirectResponse(HOME, 303)
        if path == "/" and OWN_SITES.issuperset(headers.getlist("sec-fetch-site")):
            # Not through a link of another site: wrong tokens would count as this visitor's.
            entered = self._enter(request.url.query, request)
            if entered is not None:
                return entered
        refused = await super().refused(request)
        is_page = path == "/" and "authorization" not in headers
        return self.form() if refused is not None and is_page else refused

    def _enter(self, query: str, request: Request) -> Response | None:
        """Answer a link or form that contains a token; None if there is none."""
        try:
            said = parse_qs(query, max_num_fields=10).get("token", [])
        except ValueError:
            said = []
        if not said:
            return None
        answer = self._signer.judge(said[0].strip(), client_of(request))
        if answer is not Answer.RIGHT:
            why = WHY[answer] if answer is Answer.TOO_MANY else "That is not the token."
            return self.form(answer, why)
        cookie = f"{self._cookie}={self.session(int(time.time()))}"
        rules = f"Max-Age={SESSION_S}; Path=/; HttpOnly; SameSite=Strict"
        return RedirectResponse(HOME, 303, {"set-cookie": f"{cookie}; {rules}"})

    @staticmethod
    def form(status: int = Answer.WRONG, why: str = "") -> Response:
        """Return the login page."""
        return HTMLResponse(_FORM.format(why=html.escape(why)), status, _OF_FORM)

    def session(self, since: int) -> str:
        """Return the cookie of a session that began at a time."""
        return f"{since}.{self._signer.sign(f'{self._cookie} {since}')}"

    def _is_session(self, value: str) -> bool:
        since, _, _ = value.partition(".")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return False
        if not 0 <= time.time() - int(since) <= SESSION_S:
            return False
        return hmac.compare_digest(value.encode(), self.session(int(since)).encode())


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
        self.token = "" if door is None or config.token_file else door.token  # a generated token
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
        if self.view.closed:
            why = "the console sees no more of the cluster; its log names the cause"
            return [problem(LIFE, why, "start it again", lasts=True)]
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
