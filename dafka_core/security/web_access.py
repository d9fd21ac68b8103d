"""Access over HTTP: by an unguessable token, and by a name of this machine."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import threading
from collections.abc import Collection
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dafka_core.errors import ConfigError
from dafka_core.model.names import printable
from dafka_core.security.throttles import MOST_WRONG, Guesses, guesser
from dafka_core.system.files import open_new, others_can_read
from dafka_core.system.hosts import address_of, is_loopback

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 1_024
"""Length limit of a token.  Generated ones have 43 characters, for 256 bits."""

_TOKEN: Final = re.compile(rf"[!-~]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")

_log: Final = logging.getLogger("dafka.security")


class Answer(IntEnum):
    """The result for a token, as an HTTP status."""

    RIGHT = 200
    WRONG = 401
    TOO_MANY = 429


WHY: Final = {
    Answer.WRONG: "a token is needed: send 'Authorization: Bearer TOKEN'",
    Answer.TOO_MANY: f"{MOST_WRONG} wrong tokens came from this address within a minute: wait one",
}
"""Explanations of the refusals."""


def new_token() -> str:
    """Return an unguessable token."""
    return secrets.token_urlsafe(32)


def write_token(path: Path) -> None:
    """Create a file with a new token, for its owner alone.

    Raises:
        OSError: it exists, or cannot be created.
    """
    with open_new(path, 0o600, replaces=False) as file:
        file.write(f"{new_token()}\n".encode())


class Door:
    """Admits requests with the token, and limits guessing.  Thread-safe.

    Args:
        what: the protected service, for the log.
        option: the option that named the file, for errors.
        file: has the token, and is reread when it changes; without a file a token is generated.

    Raises:
        ConfigError: the file has no token, or others can read it.
    """

    def __init__(self, what: str, option: str, file: str = "") -> None:
        self._what = what
        self._path = Path(file)
        self._has_file = bool(file)
        self._state: object = None
        self._logged = ""
        self._lock = threading.Lock()
        self._guesses = Guesses()
        self.wrong_count = 0
        """Number of wrong tokens."""
        self.token = "" if file else new_token()
        """The valid token; empty while its file is invalid."""
        if why := self._read():
            raise ConfigError(option, file, why)

    def judge(self, token: str, address: str) -> Answer:
        """Judge a token from an address."""
        with self._lock:
            if self._guesses.are_refused(address):
                return Answer.TOO_MANY
            self._reread()
            given = token.encode("utf-8", "surrogateescape")
            if hmac.compare_digest(given, self.token.encode()) and self.token:
                return Answer.RIGHT
            self.wrong_count += 1
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
        why = self._read()
        if why and why != self._logged:
            _log.error("%s: %s; no request is admitted", self._what, why)
        self._logged = why

    def _read(self) -> str:
        """Read the file if it has changed; return its error."""
        if not self._has_file:
            return ""
        try:
            status = self._path.stat()
            state = status.st_ctime_ns, status.st_size, status.st_ino
            if state == self._state:
                return ""
            self.token, self._state = "", None
            if others_can_read(status):
                return f"{self._path} can be read by others: 'chmod 600 {self._path}'"
            with self._path.open(encoding="ascii") as file:
                token = file.read(MAX_CHARACTERS + 2).strip()
        except (OSError, ValueError) as error:
            self.token, self._state = "", None
            reason = getattr(error, "strerror", None) or "it is no text"
            return f"{self._path} must be a file that 'dafka keys token FILE' makes ({reason})"
        if not _TOKEN.fullmatch(token):
            least = f"{MIN_CHARACTERS} or more characters without spaces"
            return f"{self._path} must have one line of {least}"
        self.token, self._state = token, state
        return ""


def bearer(header: str) -> str | None:
    """Return the token in a header ``Authorization``, if any (RFC 6750)."""
    kind, _, token = header.strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def is_own_name(host: str, names: Collection[str], *, is_local: bool) -> bool:
    """Return True if a header ``Host`` names this machine.

    Other names may point to its IP address, too.

    Args:
        names: its own names.
        is_local: only this machine reaches the port.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name in names:
        return True
    return address_of(name) is not None and (is_loopback(name) or not is_local)
