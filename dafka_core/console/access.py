"""Who may ask the console for what: nobody by another name, and no page of another site.

A page elsewhere can have its visitor's browser ask a server on the visitor's own machine, and with
a name of its own that it points there (DNS rebinding) also read the answers.  So requests must name
the console as its users do, and what changes something must come from its own pages.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dafka_core.nodes.addresses import is_loopback

MAX_BODY_BYTES: Final = 8 << 20
"""Of a request: a record that is written by hand, or a file."""

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
    """

    def __init__(
        self, app: ASGIApp, host: str, names: Iterable[str] = (), *, read_only: bool = False
    ) -> None:
        self._app = app
        self._is_local = is_loopback(host)
        self._names = {host.lower(), "localhost", *names}
        self._read_only = read_only

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

        refused = self._refused(scope) if scope["type"] == "http" else (403, "only HTTP is served")
        if refused is None:
            await self._app(scope, receive, send_safely)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            status, why = refused
            body = json.dumps({"error": why}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),  # a body that was not read would be the next request
            ]
            await send_safely({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """A status and a sentence, if a request is refused."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
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
        return self._refused_post(headers) if method == "POST" else None

    def _refused_post(self, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        if self._read_only:
            return 403, "the console was started with --read-only: nobody produces here"
        if any(not _is_at(origin, headers["host"][0]) for origin in headers.get("origin", [])):
            return 403, "a page of another site has asked for this"
        kinds = headers.get("content-type", [])
        if [each.partition(";")[0].strip().lower() for each in kinds] != ["application/json"]:
            return 415, "the body must be JSON, with Content-Type: application/json"
        sizes = headers.get("content-length", [])
        if len(sizes) != 1 or not sizes[0].isdigit():
            return 411, "the request must say how long its body is"
        if int(sizes[0][:20]) > MAX_BODY_BYTES:
            return 413, f"the body must have at most {MAX_BODY_BYTES:,} octets"
        return None

    def _is_own(self, host: str) -> bool:
        """Whether a request names this machine; an IP address is no name that others point here."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._is_local


def _is_at(origin: str, host: str) -> bool:
    """Whether an origin is the host that was asked."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
