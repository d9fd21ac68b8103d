"""Access to the console: tokens, logins, origins of requests, and connections.

A page of another site can make its visitor's browser send requests to the visitor's own machine,
and read the answers through DNS rebinding. So requests must use one of the console's names, and
changes must come from its own pages.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from http.cookies import CookieError, SimpleCookie
from math import inf
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dafka_core.security.web_access import WHY, Answer, Door, bearer, is_own_name
from dafka_core.system.hosts import is_loopback

LOGIN: Final = "/login"
"""Path of the login form."""

HOME: Final = "./"
"""The first page, seen from itself and from the form: relative, as all links of the pages are, so
that a reverse proxy may serve the console below any path."""

MAX_FORM_BYTES: Final = 4 << 10

SESSION_S: Final = 7 * 86_400
"""Lifetime of the cookie; a new token ends it at once."""

OPEN_FILES: Final = frozenset({"/static/style.css", "/static/icon.svg"})
"""Files of the form, served without a login."""

_FORM: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Dafka</title>
<link rel="icon" href="static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="static/style.css">
</head><body><main id="page"><h1>Dafka</h1>
<form method="post" action="login">
<p role="alert">{why}</p>
<p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required></p>
<p><button type="submit">Log in</button></p></form>
<p>The console has printed it when it started, or it is in the file of its option
<code>--token-file</code>.</p></main></body></html>
"""

_OF_FORM: Final = (("referrer-policy", "same-origin"),)
"""Without a referrer browsers send a null origin with the form, which would be refused."""


class Page(NamedTuple):
    """The login page, with a message."""

    status: int
    html: str
    headers: Sequence[tuple[str, str]] = ()


class Login:
    """Checks the cookie or token of browsers and programs.

    Args:
        port: the console's port: cookies are shared by a host's ports, so its name contains the
            port.
    """

    def __init__(self, door: Door, port: int) -> None:
        self._door = door
        self._cookie = f"dafka_console_{port}"

    def judge(self, headers: Mapping[str, Sequence[str]], address: str) -> Answer:
        """Return whether a request has a valid cookie or token."""
        for each in headers.get("cookie", ()):
            try:
                found = SimpleCookie(each).get(self._cookie)
            except CookieError:
                continue
            if found is not None and self._is_session(found.value):
                return Answer.RIGHT
        said = [bearer(each) for each in headers.get("authorization", ())]
        if len(said) != 1 or said[0] is None:
            return Answer.WRONG
        return self._door.judge(said[0], address)

    def enter(self, query: str, address: str) -> Page | None:
        """Answer a link or form that contains a token; None if there is none."""
        try:
            said = parse_qs(query, max_num_fields=10).get("token", [])
        except ValueError:
            said = []
        if not said:
            return None
        answer = self._door.judge(said[0].strip(), address)
        if answer is not Answer.RIGHT:
            why = WHY[answer] if answer is Answer.TOO_MANY else "That is not the token."
            return self.form(answer, why)
        cookie = f"{self._cookie}={self._session(int(time.time()))}"
        rules = f"Max-Age={SESSION_S}; Path=/; HttpOnly; SameSite=Strict"
        return Page(303, "", [("location", HOME), ("set-cookie", f"{cookie}; {rules}")])

    def form(self, status: int = Answer.WRONG, why: str = "") -> Page:
        """Return the login page."""
        return Page(status, _FORM.format(why=escape(why)), _OF_FORM)

    def _session(self, since: int) -> str:
        return f"{since}.{self._door.sign(f'{self._cookie} {since}')}"

    def _is_session(self, value: str) -> bool:
        since, _, _ = value.partition(".")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return False
        if not 0 <= time.time() - int(since) <= SESSION_S:
            return False
        return hmac.compare_digest(value.encode(), self._session(int(since)).encode())


MAX_BODY_BYTES: Final = 8 << 20
"""Largest body: a hand-written record, or a file."""

FORM: Final = "application/x-www-form-urlencoded"

Headers = dict[str, list[str]]
"""Headers by name in lower case."""

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` for the console's pages, and for addresses typed by users."""

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


class Access:
    """Refuses requests from elsewhere; passes on all others, and adds safe headers.

    Args:
        app: the inner application.
        host: the host on which the console listens.
        names: further names of its machine.
        read_only: whether changes are refused.
        login: checks logins; None lets everyone in.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        names: Iterable[str] = (),
        *,
        read_only: bool = False,
        login: Login | None = None,
    ) -> None:
        self._app = app
        self._is_local = is_loopback(host)
        self._names = {host.lower(), "localhost", *names}
        self._read_only = read_only
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(h for h in more if h[0] not in own)]
            await send(message)

        headers = _headers(scope)
        is_http = scope["type"] == "http"
        refused = self._refused(scope, headers) if is_http else (403, "only HTTP is served")
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = None
        if refused is None and self._login is not None:
            answer = await self._asked_to_log_in(self._login, scope, headers, receive)
        elif refused is not None:
            answer = _json(*refused)
        if answer is None:
            await self._app(scope, receive, send_safely)
        else:
            start, body = answer
            await send_safely(start)
            await send({"type": "http.response.body", "body": body})

    async def _asked_to_log_in(
        self, login: Login, scope: Scope, headers: Headers, receive: Receive
    ) -> tuple[Message, bytes] | None:
        address = str((scope.get("client") or ("?",))[0])
        path = scope["path"]
        if path == LOGIN and scope["method"] == "POST":
            form = (await _body(receive, MAX_FORM_BYTES)).decode("latin-1")
            return _html(login.enter(form, address) or login.form())
        if path == LOGIN:  # a reload of the form's target
            return _html(Page(303, "", [("location", HOME)]))
        if path in OPEN_FILES:
            return None
        if path == "/" and OWN_SITES.issuperset(headers.get("sec-fetch-site", ())):
            # Not through a link of another site: wrong tokens would count as this visitor's.
            page = login.enter(scope["query_string"].decode("latin-1"), address)
            if page is not None:
                return _html(page)
        found = login.judge(headers, address)
        if found is Answer.RIGHT:
            return None
        if path == "/" and "authorization" not in headers:
            return _html(login.form())
        start, body = _json(found, WHY[found])
        start["headers"].append((b"www-authenticate", b"Bearer"))
        return start, body

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return 421, (
                "the console was asked for by a name that is not its own: use its address, or "
                "start it with --names and this name"
            )
        method, site = scope["method"], headers.get("sec-fetch-site", ["none"])
        if method not in ("GET", "HEAD", "POST"):
            return 405, "only GET, HEAD and POST are served"
        is_page = method != "POST" and not scope["path"].startswith(("/api/", "/events"))
        if not is_page and not OWN_SITES.issuperset(site):
            return 403, "a page of another site has asked for this"
        return self._refused_post(headers, scope["path"]) if method == "POST" else None

    def _refused_post(self, headers: Headers, path: str) -> tuple[int, str] | None:
        is_form = path == LOGIN and self._login is not None
        if self._read_only and not is_form:
            return 403, "the console was started with --read-only"
        if any(not _is_at(origin, headers["host"][0]) for origin in headers.get("origin", [])):
            return 403, "a page of another site has asked for this"
        kinds = headers.get("content-type", [])
        wanted = FORM if is_form else "application/json"
        if [each.partition(";")[0].strip().lower() for each in kinds] != [wanted]:
            return 415, f"the body must be of Content-Type: {wanted}"
        sizes = headers.get("content-length", [])
        if len(sizes) != 1 or not sizes[0].isdigit():
            return 411, "the request must say how long its body is"
        most = MAX_FORM_BYTES if is_form else MAX_BODY_BYTES
        if int(sizes[0][:20]) > most:
            return 413, f"the body must have at most {most:,} octets"
        return None

    def _is_own(self, host: str) -> bool:
        return is_own_name(host, self._names, is_local=self._is_local)


def _headers(scope: Scope) -> Headers:
    headers: Headers = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


async def _body(receive: Receive, most: int) -> bytes:
    """Return a request's body, read until it is longer than ``most``."""
    found = b""
    while len(found) <= most:
        message = await receive()
        found += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    return found


def _answer(
    status: int, kind: str, body: bytes, more: Iterable[tuple[str, str]] = ()
) -> tuple[Message, bytes]:
    told = [
        ("content-type", kind),
        ("content-length", str(len(body))),
        ("connection", "close"),  # an unread body would be parsed as the next request
        *more,
    ]
    headers = [(name.encode(), value.encode()) for name, value in told]
    return {"type": "http.response.start", "status": status, "headers": headers}, body


def _json(status: int, why: str) -> tuple[Message, bytes]:
    return _answer(status, "application/json", json.dumps({"error": why}).encode())


def _html(page: Page) -> tuple[Message, bytes]:
    return _answer(page.status, "text/html; charset=utf-8", page.html.encode(), page.headers)


def _is_at(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


MOST_CONNECTIONS: Final = 256
"""Connections at a time. Beyond it a connection without a request is closed; if there is none, the
new one is refused."""

REQUEST_S: Final = 10.0
"""Time for a complete request, from the connection or the previous answer."""


class Connection(H11Protocol):
    """A connection that closes if no request arrives in time.

    Attributes:
        ends_s: that deadline on the loop's clock; infinite during an answer.
    """

    ends_s = inf
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a client, or close an idle connection for it."""
        super().connection_made(transport)
        if len(self.connections) >= MOST_CONNECTIONS:
            others = (each for each in self.connections if isinstance(each, Connection))
            oldest = min(others, key=lambda each: each.ends_s)
            if oldest.ends_s < inf:
                oldest.end()
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
