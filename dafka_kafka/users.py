"""Users of a gateway: names, password verifiers, roles and permissions, in a file.

A line is ``NAME SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY``, PostgreSQL's form of
passwords (RFC 5803), from which a password can only be guessed; a user has one line for each
mechanism. One more line is ``NAME roles=ROLE,… produce=PATTERN,… consume=PATTERN,…``, with special
characters of patterns escaped as in all names (``names.escape``). The line
``salt-key=BASE64`` is the key of the salts that unknown users get.
"""

from __future__ import annotations

import base64
import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from dafka_core.errors import ConfigError
from dafka_core.model.names import escape, printable, unescape
from dafka_core.protocol.limits import RecentNames
from dafka_core.security.permissions import (
    ADMIN,
    ALL_TOPICS,
    CONSUME,
    PRODUCE,
    Permissions,
    parse_patterns,
    parse_roles,
)
from dafka_core.security.private_file import PrivateFile
from dafka_core.security.throttles import Guesses
from dafka_kafka.errors import KafkaError

# Permissions in Kafka's terms: operations on resources. One table lists those of each role.
# Requests are checked by it, and DescribeAcls and the operations in responses report it.


MAX_TOPICS: Final = 10_000
"""Cached answers: clients ask for any name."""

_ALL: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""Kafka's name of the only CLUSTER resource."""

_WILDCARDS: Final = frozenset("*?[")


class Resource(IntEnum):
    """Resource types, by Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Operation(IntEnum):
    """Operations, by Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12

    __hash__ = int.__hash__  # three times as fast as Enum's own


_O = Operation
_CHANGE: Final = frozenset(
    (_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
)

OPERATIONS: Final[Mapping[str, Mapping[Resource, frozenset[Operation]]]] = MappingProxyType(
    {
        PRODUCE: {
            Resource.TOPIC: frozenset({_O.WRITE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS}),
            Resource.CLUSTER: frozenset({_O.IDEMPOTENT_WRITE}),
        },
        CONSUME: {
            Resource.TOPIC: frozenset({_O.READ, _O.DESCRIBE, _O.DESCRIBE_CONFIGS}),
            Resource.GROUP: frozenset({_O.READ, _O.DESCRIBE}),
        },
        ADMIN: {
            Resource.TOPIC: _CHANGE | {_O.DELETE},
            Resource.GROUP: frozenset({_O.DELETE, _O.DESCRIBE}),
            Resource.CLUSTER: _CHANGE,
        },
    }
)
"""The permissions of roles. Those on topics apply to matching patterns, or to all topics for an
admin; groups are not distinguished."""

TOPIC_OPERATIONS: Final = frozenset[Operation]().union(
    *(each[Resource.TOPIC] for each in OPERATIONS.values())
)
"""All operations on topics."""

USER_ROLES: Final = tuple(OPERATIONS)
"""The roles that a user may have."""

REFUSALS: Final = MappingProxyType(
    {
        Resource.TOPIC: KafkaError.TOPIC_AUTHORIZATION_FAILED,
        Resource.GROUP: KafkaError.GROUP_AUTHORIZATION_FAILED,
        Resource.CLUSTER: KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""The error for a refused operation."""


class Need(NamedTuple):
    """A required permission on a resource type, for all resources or for a named one."""

    resource: Resource
    operation: Operation


class Rights:
    """A user's rights, cached by name: clients ask for the same topics again and again."""

    def __init__(self, permissions: Permissions) -> None:
        self.permissions = permissions
        roles = [OPERATIONS[each] for each in USER_ROLES if each in permissions.roles]
        self._others = {
            kind: frozenset[Operation]().union(*(role.get(kind, ()) for role in roles))
            for kind in Resource
        }
        self._topics = RecentNames[frozenset[Operation]](MAX_TOPICS)

    def operations(self, resource: Resource, name: str = "") -> frozenset[Operation]:
        """Return the permitted operations on a resource."""
        if resource is not Resource.TOPIC:
            return self._others[resource]
        found = self._topics.get(name)
        if found is None:
            found = self._of_topic(name)
            self._topics.keep(name, found)
        return found

    def may(self, need: Need, name: str = "") -> bool:
        """Return whether an operation is permitted."""
        return need.operation in self.operations(need.resource, name)

    def _of_topic(self, name: str) -> frozenset[Operation]:
        holds = {
            PRODUCE: self.permissions.may_produce(name),
            CONSUME: self.permissions.may_consume(name),
            ADMIN: self.permissions.is_admin,
        }
        sets = (OPERATIONS[role][Resource.TOPIC] for role in USER_ROLES if holds[role])
        return frozenset[Operation]().union(*sets)


class Pattern(IntEnum):
    """Pattern types of ACLs, by Kafka's numbers."""

    LITERAL = 3
    PREFIXED = 4


class Acl(NamedTuple):
    """One ACL, as Kafka's tools list it."""

    resource: Resource
    name: str
    pattern: Pattern
    user: str
    operation: Operation


def acls(permissions: Permissions) -> Iterator[Acl]:
    """Return a user's permissions as Kafka's ACLs.

    Kafka has literal and prefix patterns only; other patterns are listed literally.
    """
    patterns = {PRODUCE: permissions.produce, CONSUME: permissions.consume}
    for role in USER_ROLES:
        for resource, operations in OPERATIONS[role].items() if role in permissions.roles else ():
            is_topic = resource is Resource.TOPIC
            for text in patterns.get(role, ALL_TOPICS) if is_topic else ALL_TOPICS:
                name, pattern = _as_kafka_has_it(text)
                name = CLUSTER_NAME if resource is Resource.CLUSTER else name
                for operation in sorted(operations):
                    yield Acl(resource, name, pattern, permissions.name, operation)


def _as_kafka_has_it(pattern: str) -> tuple[str, Pattern]:
    start = pattern.removesuffix(_ALL)
    if pattern in (start, _ALL) or _WILDCARDS & {*start}:
        return pattern, Pattern.LITERAL
    return start, Pattern.PREFIXED


try:
    from scramp import ScramException, ScramMechanism
except ImportError:
    _why = "needs scramp: pip install 'dafka-spark[kafka]'"
    raise ConfigError("kafka", True, _why) from None

SALT_KEY: Final = "salt-key="
"""Begins the line with the key of salts; no user's name contains ``=``."""

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")

ITERATIONS: Final = 16_384
"""SCRAM iterations: about 10 ms for each guess, and for each new connection. Kafka's brokers have
4,096."""

MAX_ITERATIONS: Final = 1 << 20
MAX_PASSWORD_BYTES: Final = 1_024

HASHING_THREADS: Final = 2
"""Processors that password checks may use."""

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
    """A verifier of a password for one mechanism (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def verifier_of(mechanism: str, password: str, like: Verifier | None = None) -> Verifier:
    """Make a verifier, with a new salt or with the salt of ``like``.

    Raises:
        ValueError: the password is invalid.
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
    """Return the lines with a user's verifiers.

    Raises:
        ValueError: the name or the password is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 255 characters without spaces, ',' and '='")
    return [_line(name, each, verifier_of(each, password)) for each in SCRAM]


def salt_key_line() -> str:
    """Return the line with a new key of salts."""
    return SALT_KEY + base64.b64encode(secrets.token_bytes(32)).decode()


def line_of(permissions: Permissions) -> str:
    """Return the line with a user's permissions."""
    told = {each: getattr(permissions, each) for each in _PATTERNS}
    told = {"roles": [each for each in USER_ROLES if each in permissions.roles], **told}
    facts = (f"{name}={','.join(map(_escaped, words))}" for name, words in told.items())
    return f"{permissions.name} {' '.join(facts)}"


def user_roles(words: Iterable[str]) -> frozenset[str]:
    """Parse roles; a word may contain several, separated by commas.

    Raises:
        ValueError: a role is unknown, or not for users.
    """
    roles = parse_roles(words)
    others = [each for each in roles if each not in USER_ROLES]
    if others:
        raise ValueError(f"{others[0]!r} is for keys of nodes; users have {', '.join(USER_ROLES)}")
    return frozenset(roles)


def permissions_of(line: str) -> Permissions | None:
    """Parse a line with permissions; None if it is one with a verifier.

    Raises:
        ValueError: the line is invalid.
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
    """A user's verifiers and permissions."""

    verifiers: dict[str, Verifier]
    rights: Rights | None


class Users:
    """The users in a file, reloaded when it changes.

    Raises:
        ConfigError: the file is invalid, or readable by others.
    """

    def __init__(self, file: str) -> None:
        self._file = PrivateFile(file, "dafka kafka-user", self._parse)
        self._secret = secrets.token_bytes(32)  # if the file has none
        self.guesses = Guesses()
        """Wrong passwords of all users, by client address."""
        self.threads = ThreadPoolExecutor(HASHING_THREADS, "dafka-kafka-password")
        """Threads for ``knows``, which keeps a processor busy."""
        try:
            self._known = self._file.read()
        except ValueError as error:
            raise ConfigError("kafka_users", file, str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def _parse(self, octets: bytes) -> Mapping[str, _User]:
        known = _parse_users(octets)
        found = (each for each in octets.splitlines() if each.startswith(SALT_KEY.encode()))
        self._secret = next(found, self._secret)
        return known

    def close(self) -> None:
        """Stop checking passwords."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def verifiers(self, name: str) -> Mapping[str, Verifier] | None:
        """Return a user's verifiers by mechanism; None for an unknown user."""
        found = self._known.get(name)
        return None if found is None else found.verifiers

    def rights(self, name: str) -> Rights | None:
        """Return a user's permissions; None for an unknown user."""
        found = self._known.get(name)
        return None if found is None else found.rights

    def permissions(self) -> list[Permissions]:
        """Return the permissions of all users, by name."""
        held = (each.rights for _, each in sorted(self._known.items()))
        return [each.permissions for each in held if each is not None]

    def look(self) -> None:
        """Reload the file if it has changed; while it is invalid, all users are rejected."""
        log = partial(_log.error, "Kafka: users: %s; all are rejected")
        self._known = self._file.reread({}, log)

    def verifier(self, mechanism: str, name: str) -> Verifier:
        """Return the user's verifier; for an unknown user a fixed one that no password matches.

        So answers don't reveal which names exist, even beside those of another gateway or run.
        """
        known = self._known.get(name)
        if known is not None and mechanism in known.verifiers:
            return known.verifiers[mechanism]
        size = int(mechanism[-3:]) // 8
        named = f"{mechanism} {name}".encode("utf-8", "surrogatepass")
        salt = hmac.digest(self._secret, named, "sha256")
        return Verifier(salt, secrets.token_bytes(size), secrets.token_bytes(size), ITERATIONS)

    def knows(self, name: str, password: str) -> bool:
        """Check a password; takes the same time whether the user exists or not."""
        like = self.verifier(SCRAM[0], name)
        try:
            given = verifier_of(SCRAM[0], password, like)
        except ValueError:
            return False
        return hmac.compare_digest(given.stored_key, like.stored_key)


def _parse_users(octets: bytes) -> Mapping[str, _User]:
    known: dict[str, _User] = {}
    try:
        lines = octets.decode().splitlines()
    except ValueError:
        raise ValueError("must be a file that 'dafka kafka-user' made (it is no text)") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", SALT_KEY)):
            continue
        try:
            _take(known, line)
        except ValueError as error:
            raise ValueError(f"line {number} {printable(str(error))}") from None
    if not known:
        raise ValueError("has no user: 'dafka kafka-user add NAME --kafka-users FILE' adds one")
    for name, user in known.items():
        if user.rights is None:
            cure = f"'dafka kafka-user change {name} --role ROLE' gives some"
            raise ValueError(f"has no roles of user {printable(name)!r}: {cure}")
        if not user.verifiers:
            cure = f"'dafka kafka-user add {name}' gives one"
            raise ValueError(f"has no password of user {printable(name)!r}: {cure}")
    return known


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
