"""Who looks at a console that asks for a token: a form, and a cookie in place of the token."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping, Sequence
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from dafka_core.web_access import WHY, Answer, Door, bearer

LOGIN: Final = "/login"
"""Where the form is sent to."""

MAX_FORM_BYTES: Final = 4 << 10

SESSION_S: Final = 7 * 86_400
"""How long a browser is let in by its cookie; another token ends it at once."""

OPEN_FILES: Final = frozenset({"/static/style.css", "/static/icon.svg"})
"""What the form needs, and anybody may see."""

_FORM: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Dafka</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
</head><body><main id="page"><h1>Dafka</h1>
<form method="post" action="{login}">
<p role="alert">{why}</p>
<p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required></p>
<p><button type="submit">Log in</button></p></form>
<p>The console has printed it when it started, or it is in the file of its option
<code>--token-file</code>.</p></main></body></html>
"""

_OF_FORM: Final = (("referrer-policy", "same-origin"),)
"""Without a referrer browsers say of a form that it is of no site, and it would be refused."""


class Page(NamedTuple):
    """A page, and what is said beside it."""

    status: int
    html: str
    headers: Sequence[tuple[str, str]] = ()


class Login:
    """Judges requests of browsers and programs.

    Args:
        port: the console's: each one has a cookie of its own, and browsers keep them by machines.
    """

    def __init__(self, door: Door, port: int) -> None:
        self._door = door
        self._cookie = f"dafka_console_{port}"

    def judge(self, headers: Mapping[str, Sequence[str]], address: str) -> Answer:
        """Whether who asks is let in, by a cookie or a token."""
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
        """The answer to a link or a form with a token; None where there is none in it."""
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
        return Page(303, "", [("location", "/"), ("set-cookie", f"{cookie}; {rules}")])

    def form(self, status: int = Answer.WRONG, why: str = "") -> Page:
        """Where the token is asked for."""
        return Page(status, _FORM.format(login=LOGIN, why=escape(why)), _OF_FORM)

    def _session(self, since: int) -> str:
        return f"{since}.{self._door.sign(f'{self._cookie} {since}')}"

    def _is_session(self, value: str) -> bool:
        since, _, _ = value.partition(".")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return False
        if not 0 <= time.time() - int(since) <= SESSION_S:
            return False
        return hmac.compare_digest(value.encode(), self._session(int(since)).encode())
