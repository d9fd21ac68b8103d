"""Access over HTTP: by an unguessable token, and by a name of this machine."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import threading
from collections.abc import Collection
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dafka_core.errors import ConfigError
from dafka_core.model.names import printable
from dafka_core.security.throttles import MOST_WRONG, Guesses, guesser
from dafka_core.system.files import PrivateFile, open_new
from dafka_core.system.hosts import address_of, is_loopback

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 1_024
"""Length limit of a token.  Generated ones have 43 characters, for 256 bits."""

_TOKEN: Final = re.compile(rb"[!-~]{%d,%d}" % (MIN_CHARACTERS, MAX_CHARACTERS))

_log: Final = logging.getLogger("dafka.security")


class Answer(IntEnum):
    """The result for a token: an HTTP status."""

    RIGHT = 200
    WRONG = 401
    TOO_MANY = 429


WHY: Final = {
    Answer.WRONG: "a token is needed: send 'Authorization: Bearer TOKEN'",
    Answer.TOO_MANY: f"{MOST_WRONG} wrong tokens came from this address within a minute: wait one",
}


def new_token() -> str:
    """Return an unguessable token."""
    return secrets.token_urlsafe(32)


def write_token(path: Path) -> None:
    """Create a file with a new token, for its owner alone; raise OSError if it exists."""
    with open_new(path, 0o600, replaces=False) as file:
        file.write(f"{new_token()}\n".encode())


class Door:
    """Admits requests with the token, and limits guessing.  Thread-safe.

    Args:
        what: the protected service, for the log.
        option: the option that named the file, for errors.
        file: has the token, and is reread when it changes; without a file a token is generated.
    """

    def __init__(self, what: str, option: str, file: str = "") -> None:
        self._what = what
        self._file = PrivateFile(file, "dafka keys token FILE", _parse_token) if file else None
        self._lock = threading.Lock()
        self._guesses = Guesses()
        try:
            self.token = self._file.read() if self._file else new_token()
            """The valid token; empty while its file is invalid."""
        except ValueError as error:
            raise ConfigError(option, file, str(error)) from None

    def judge(self, token: str, address: str) -> Answer:
        """Judge a token from an address."""
        with self._lock:
            if self._guesses.are_refused(address):
                return Answer.TOO_MANY
            self._reread()
            given = token.encode("utf-8", "surrogateescape")
            if hmac.compare_digest(given, self.token.encode()) and self.token:
                return Answer.RIGHT
            count = self._guesses.add_wrong(address)
        if count in (1, MOST_WRONG):
            text = "%s: a wrong token from %s (%d of at most %d in a minute)"
            facts = (self._what, printable(guesser(address)), count, MOST_WRONG)
            _log.warning(text, *facts, extra={"event": "wrong_token"})
        return Answer.WRONG

    def sign(self, text: str) -> str:
        """Sign a text with the token."""
        with self._lock:
            self._reread()
            key = self.token or new_token()  # an invalid file admits no request
        return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()

    def _reread(self) -> None:
        if self._file is not None:
            log = partial(_log.error, "%s: %s; no request is admitted", self._what)
            self.token = self._file.reread("", log)


def _parse_token(octets: bytes) -> str:
    if not _TOKEN.fullmatch(token := octets.strip()):
        raise ValueError(f"must be one line of {MIN_CHARACTERS} or more characters without spaces")
    return token.decode()


def bearer(header: str) -> str | None:
    """Return the token in a header ``Authorization``, if any (RFC 6750)."""
    kind, _, token = header.strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def is_own_name(host: str, names: Collection[str], *, is_local: bool) -> bool:
    """Return True if a header ``Host`` names this machine; other names may point to its address.

    ``is_local`` is true if only this machine reaches the port.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name in names:
        return True
    return address_of(name) is not None and (is_loopback(name) or not is_local)
