"""Who may ask over HTTP: by a token, which nobody guesses, and by a name of the machine's own."""

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
"""Of a token.  One that is made here has 43, which stand for 256 bits."""

_TOKEN: Final = re.compile(rf"[!-~]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")

_log: Final = logging.getLogger("dafka.security")


class Answer(IntEnum):
    """What becomes of a token, as HTTP says it."""

    RIGHT = 200
    WRONG = 401
    TOO_MANY = 429


WHY: Final = {
    Answer.WRONG: "a token is needed: say 'Authorization: Bearer TOKEN'",
    Answer.TOO_MANY: f"{MOST_WRONG} wrong tokens came from this address within a minute: wait one",
}
"""What is told of the others."""


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(32)


def write_token(path: Path) -> None:
    """Makes a file with a new token, for its owner alone.

    Raises:
        OSError: it is there already, or cannot be made.
    """
    with open_new(path, 0o600, replaces=False) as file:
        file.write(f"{new_token()}\n".encode())


class Door:
    """Lets in who says the token, and does not let anybody guess it.  For any thread.

    Args:
        what: what is behind it, for the log.
        option: the option that named the file, for errors.
        file: has the token, and is read again when it changes; without one a token is made.

    Raises:
        ConfigError: the file is none with a token, or others can read it.
    """

    def __init__(self, what: str, option: str, file: str = "") -> None:
        self._what = what
        self._path = Path(file) if file else None
        self._state: object = None
        self._said = ""
        self._lock = threading.Lock()
        self._guesses = Guesses()
        self.wrong_count = 0
        """How many wrong tokens have come."""
        self.token = "" if file else new_token()
        """What is to be said; nothing is while its file is wrong."""
        why = self._read()
        if why:
            raise ConfigError(option, file, why)

    def judge(self, said: str, address: str) -> Answer:
        """Whether that is the token; ``address`` is who says it."""
        with self._lock:
            if self._guesses.are_refused(address):
                return Answer.TOO_MANY
            if self._is_right(said):
                return Answer.RIGHT
            self.wrong_count += 1
            count = self._guesses.add_wrong(address)
        if count in (1, MOST_WRONG):
            text = "%s: a wrong token from %s (%d of at most %d in a minute)"
            facts = (self._what, printable(guesser(address)), count, MOST_WRONG)
            _log.warning(text, *facts, extra={"event": "wrong_token"})
        return Answer.WRONG

    def sign(self, text: str) -> str:
        """What only who knows the token could have made of a text."""
        with self._lock:
            self._look()
            key = self.token or secrets.token_urlsafe(32)  # while it is wrong nobody is let in
        return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()

    def _is_right(self, said: str) -> bool:
        self._look()
        given = said.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.token.encode()) and bool(self.token)

    def _look(self) -> None:
        why = self._read()
        if why and why != self._said:
            _log.error("%s: %s; nobody is let in", self._what, why)
        self._said = why

    def _read(self) -> str:
        if self._path is None:
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
    """The token in a header ``Authorization``; None if there is none (RFC 6750)."""
    kind, _, token = header.strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def is_own_name(host: str, names: Collection[str], *, is_local: bool) -> bool:
    """Whether a header ``Host`` names this machine; others point no IP address here.

    Args:
        names: names that are its own.
        is_local: whether only this machine reaches the port.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name in names:
        return True
    return address_of(name) is not None and (is_loopback(name) or not is_local)
