"""Who may ask the console for what: nobody by another name, and no page of another site.

A page elsewhere can have its visitor's browser ask a server on the visitor's own machine, and with
a name of its own that it points there (DNS rebinding) also read the answers.  So requests must name
the console as its users do, and what changes something must come from its own pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dafka_core.console.login import LOGIN, MAX_FORM_BYTES, OPEN_FILES, Login, Page
from dafka_core.nodes.addresses import is_loopback
from dafka_core.web_access import WHY, Answer, is_own_name

MAX_BODY_BYTES: Final = 8 << 20
"""Of a request: a record that is written by hand, or a file."""

FORM: Final = "application/x-www-form-urlencoded"

Headers = dict[str, list[str]]
"""By their names in lower case."""

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` for what the console's pages ask, and what a user has typed."""

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
"""Of every answer.  Nothing from elsewhere is loaded, and nothing in a record becomes a script."""


class Access:
    """Refuses what is not for the console; hands on everything else, with safe headers.

    Args:
        app: what answers.
        host: where the console listens.
        names: further names of its machine.
        read_only: whether nothing may be changed.
        login: who is let in; everybody without it.
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
        """Answers a request."""
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
        if path == LOGIN:  # again, as where a form has led to
            return _html(Page(303, "", [("location", "/")]))
        if path in OPEN_FILES:
            return None
        if path == "/" and OWN_SITES.issuperset(headers.get("sec-fetch-site", ())):
            # Not by a link of another site: its wrong tokens would be this visitor's.
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
            return 403, "the console was started with --read-only: nobody produces here"
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
    """What is sent, as far as it may go: HTTP's library has it end where it was said to."""
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
        ("connection", "close"),  # a body that was not read would be the next request
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
