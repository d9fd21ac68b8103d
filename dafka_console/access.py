"""Logging in to the console: a form, a link with the token, and cookies."""

from __future__ import annotations

import hmac
import time
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from dafka_core.ops import http_server
from dafka_core.ops.http_server import OWN_SITES, client_of
from dafka_core.ops.node_routes import PROBES
from dafka_core.security.web_access import WHY, Answer, Door

HOME: Final = "./"
"""The first page, seen from itself and from the form: relative, as all links of the pages are, so
that a reverse proxy may serve the console below any path."""

SESSION_S: Final = 7 * 86_400
"""Lifetime of the cookie; a new token ends it at once."""

OPEN_FILES: Final = ("/static/style.css", "/static/icon.svg")
"""Files of the form, served without a login."""

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


class ConsoleLogin(http_server.Login):
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
        return HTMLResponse(_FORM.format(why=escape(why)), status, _OF_FORM)

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
