"""Who may use a gateway: a file of names, of what proves a password, and of what each may do.

A line is ``NAME SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY``, in the form that PostgreSQL
keeps passwords in (RFC 5803); a user has one for each mechanism.  No password can be had from it
but by guessing.  One more is ``NAME roles=ROLE,… produce=PATTERN,… consume=PATTERN,…``, in which
octets of patterns that would end them are escaped as in all names (``names.escape``).
"""

from __future__ import annotations

import base64
import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from dafka_core.errors import ConfigError
from dafka_core.guesses import Guesses
from dafka_core.kafka.rights import USER_ROLES, Rights
from dafka_core.names import escape, printable, unescape
from dafka_core.permissions import (
    ALL_TOPICS,
    CONSUME,
    PRODUCE,
    Permissions,
    parse_patterns,
    parse_roles,
)
from dafka_core.private_files import others_can_read

try:
    from scramp import ScramException, ScramMechanism
except ImportError:
    _why = "needs scramp: pip install 'dafka-spark[kafka]'"
    raise ConfigError("kafka", True, _why) from None

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")

ITERATIONS: Final = 16_384
"""What a guess costs, and a client when it connects: some 10 ms.  Kafka's brokers have 4,096."""

MAX_ITERATIONS: Final = 1 << 20
MAX_PASSWORD_BYTES: Final = 1_024

HASHING_THREADS: Final = 2
"""So many of the processors at most are taken by clients that say passwords."""

_NAME: Final = re.compile(r"[^\s,=\0-\x1f]{1,255}")
_LINE: Final = re.compile(
    r"(?a)(?P<name>\S+) (?P<mechanism>SCRAM-SHA-\d+)\$(?P<iterations>\d{1,7}):(?P<salt>\S+)"
    r"\$(?P<stored>\S+):(?P<server>\S+)"
)

_SPACES: Final = re.compile(r"[\s,]")
_PATTERNS: Final = (PRODUCE, CONSUME)
_NO_LINE: Final = "is no line that 'dafka kafka-user' writes"

_log: Final = logging.getLogger("dafka.kafka")


class Verifier(NamedTuple):
    """What a server keeps of a password for a mechanism (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def verifier_of(mechanism: str, password: str, like: Verifier | None = None) -> Verifier:
    """What is kept of a password, with a new salt unless it is to be ``like`` another one.

    Raises:
        ValueError: no password can be that.
    """
    salt, iterations = (like.salt, like.iterations) if like else (None, ITERATIONS)
    if not 0 < len(password.encode("utf-8", "surrogatepass")) <= MAX_PASSWORD_BYTES:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD_BYTES} octets")
    try:
        made = ScramMechanism(mechanism).make_auth_info(password, iterations, salt)
    except (ScramException, UnicodeError) as error:
        raise ValueError(f"it cannot be a password ({error})") from None
    return Verifier(*made)


def lines_of(name: str, password: str) -> list[str]:
    """A user's lines that prove a password.

    Raises:
        ValueError: it is no name, or no password.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 255 characters without spaces, ',' and '='")
    return [_line(name, each, verifier_of(each, password)) for each in SCRAM]


def line_of(permissions: Permissions) -> str:
    """A user's line that says what it may do."""
    told = {each: getattr(permissions, each) for each in _PATTERNS}
    told = {"roles": [each for each in USER_ROLES if each in permissions.roles], **told}
    facts = (f"{name}={','.join(map(_escaped, words))}" for name, words in told.items())
    return f"{permissions.name} {' '.join(facts)}"


def user_roles(words: Iterable[str]) -> frozenset[str]:
    """Those of a user from words, each of which may name several by commas.

    Raises:
        ValueError: one is none, or none of a user's.
    """
    roles = parse_roles(words)
    others = [each for each in roles if each not in USER_ROLES]
    if others:
        raise ValueError(f"{others[0]!r} is for keys of nodes; users have {', '.join(USER_ROLES)}")
    return frozenset(roles)


def permissions_of(line: str) -> Permissions | None:
    """What a line says that a user may do; None if it is about a password.

    Raises:
        ValueError: it says it in a wrong way.
    """
    name, _, said = line.partition(" ")
    if not said.startswith("roles="):
        return None
    facts = dict(_fact(each) for each in said.split())
    if not facts.keys() <= {"roles", *_PATTERNS} or not _NAME.fullmatch(name):
        raise ValueError(_NO_LINE)
    produce, consume = (facts.get(each, ALL_TOPICS) for each in _PATTERNS)
    return Permissions(name, user_roles(facts["roles"]), produce, consume)


def _fact(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, words = text.partition("=")
    return name, tuple(map(unescape, parse_patterns([words])))


def _escaped(pattern: str) -> str:
    return _SPACES.sub(
        lambda each: "".join(f"\\x{o:02x}" for o in each[0].encode()), escape(pattern)
    )


def _line(name: str, mechanism: str, made: Verifier) -> str:
    salt, stored, server = (base64.b64encode(each).decode() for each in made[:3])
    return f"{name} {mechanism}${made.iterations}:{salt}${stored}:{server}"


def _parsed(line: str) -> tuple[str, str, Verifier]:
    found = _LINE.fullmatch(line)
    if found is None or found["mechanism"] not in SCRAM:
        raise ValueError(_NO_LINE)
    iterations = int(found["iterations"])
    size = int(found["mechanism"][-3:]) // 8
    salt, stored, server = (
        base64.b64decode(found[each], validate=True) for each in ("salt", "stored", "server")
    )
    if not len(stored) == len(server) == size or not salt:
        raise ValueError("has a key of another length than its mechanism's")
    if not 4_096 <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"has {iterations} iterations, of 4096 to {MAX_ITERATIONS}")
    return found["name"], found["mechanism"], Verifier(salt, stored, server, iterations)


class _User(NamedTuple):
    """What is known of a user."""

    verifiers: dict[str, Verifier]
    rights: Rights | None


class Users:
    """The users in a file, as it is now.

    Raises:
        ConfigError: the file is wrong, or others can read it.
    """

    def __init__(self, file: str) -> None:
        self._path = Path(file)
        self._state: object = None
        self._known: Mapping[str, _User] = {}
        self._secret = secrets.token_bytes(32)
        self.guesses = Guesses()
        """Wrong passwords, of whatever user."""
        self.threads = ThreadPoolExecutor(HASHING_THREADS, "dafka-kafka-password")
        """For ``knows``, which takes a processor while it lasts: nothing else waits there."""
        self._said = ""
        why = self._read()
        if why:
            raise ConfigError("kafka_users", file, why)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def close(self) -> None:
        """Hashes no more passwords."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def verifiers(self, name: str) -> Mapping[str, Verifier] | None:
        """What is known of a user's password, by mechanism; None if it is no user."""
        found = self._known.get(name)
        return None if found is None else found.verifiers

    def rights(self, name: str) -> Rights | None:
        """What a user may do; None if it is none any more."""
        found = self._known.get(name)
        return None if found is None else found.rights

    def permissions(self) -> list[Permissions]:
        """What all of them may do, by their names."""
        held = (each.rights for _, each in sorted(self._known.items()))
        return [each.permissions for each in held if each is not None]

    def look(self) -> None:
        """Reads the file again if it is another one; while it is wrong nobody is let in."""
        why = self._read()
        if why and why != self._said:
            _log.error("Kafka: users: %s: %s; nobody is let in", self._path, why)
        self._said = why

    def verifier(self, mechanism: str, name: str) -> Verifier:
        """A user's; of somebody unknown one that no password fits, the same each time.

        So nobody is told by the answer which names there are.
        """
        known = self._known.get(name)
        if known is not None and mechanism in known.verifiers:
            return known.verifiers[mechanism]
        size = int(mechanism[-3:]) // 8
        salt = hmac.digest(self._secret, name.encode("utf-8", "surrogatepass"), "sha256")
        return Verifier(salt, secrets.token_bytes(size), secrets.token_bytes(size), ITERATIONS)

    def knows(self, name: str, password: str) -> bool:
        """Whether that is a user's password; takes some milliseconds, whatever it is."""
        like = self.verifier(SCRAM[0], name)
        try:
            given = verifier_of(SCRAM[0], password, like)
        except ValueError:
            return False
        return hmac.compare_digest(given.stored_key, like.stored_key)

    def _read(self) -> str:
        try:
            status = self._path.stat()
            state = status.st_ctime_ns, status.st_size, status.st_ino
            if state == self._state:
                return self._said
            self._known, self._state = {}, None
            if others_can_read(status):
                return f"others can read it: 'chmod 600 {self._path}'"
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            self._known, self._state = {}, None
            return f"must be a file that 'dafka kafka-user' writes ({_reason(error)})"
        known: dict[str, _User] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                _take(known, line)
            except ValueError as error:
                return f"line {number} {printable(str(error))}"
        if not known:
            return "has no user: 'dafka kafka-user add NAME --kafka-users FILE' adds one"
        for name, user in known.items():
            if user.rights is None:
                cure = f"'dafka kafka-user change {name} --role ROLE' gives some"
                return f"says nothing of the roles of user {printable(name)!r}: {cure}"
            if not user.verifiers:
                cure = f"'dafka kafka-user add {name}' gives one"
                return f"has no password of user {printable(name)!r}: {cure}"
        self._known, self._state = known, state
        return ""


def _take(known: dict[str, _User], line: str) -> None:
    permissions = permissions_of(line)
    if permissions is None:
        name, mechanism, verifier = _parsed(line)
        known.setdefault(name, _User({}, None)).verifiers[mechanism] = verifier
        return
    user = known.get(permissions.name, _User({}, None))
    if user.rights is not None:
        raise ValueError("gives a user roles a second time")
    known[permissions.name] = user._replace(rights=Rights(permissions))


def _reason(error: Any) -> str:
    return getattr(error, "strerror", None) or "it is no text"
