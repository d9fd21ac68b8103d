"""Users of a gateway: names, password verifiers, roles and permissions, in a file.

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

# What a user of a gateway may do, in Kafka's terms: which operations on which resources.
#
# One table says what each role has.  Requests are judged by it (``access_rules``), and it is what
# Kafka's tools are told of (DescribeAcls, and the operations that responses list).


MAX_TOPICS: Final = 10_000
"""Of which it is kept what a user may do there: clients ask for any names."""

_ALL: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""What Kafka calls the only resource of kind CLUSTER."""

_WILDCARDS: Final = frozenset("*?[")


class Resource(IntEnum):
    """What operations are on, by Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Operation(IntEnum):
    """What is done to a resource, by Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12

    __hash__ = int.__hash__  # an enumeration's own one takes three times as long


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
"""What each role has: of topics those that its patterns fit, and an admin all of them; groups are
not told apart."""

USER_ROLES: Final = tuple(OPERATIONS)
"""The roles that a user may have."""

REFUSALS: Final = MappingProxyType(
    {
        Resource.TOPIC: KafkaError.TOPIC_AUTHORIZATION_FAILED,
        Resource.GROUP: KafkaError.GROUP_AUTHORIZATION_FAILED,
        Resource.CLUSTER: KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""How it is told that an operation on a resource is not allowed."""


class Need(NamedTuple):
    """An operation on all resources of a kind, or on one that has a name."""

    resource: Resource
    operation: Operation


class Rights:
    """What a user may do, each answer kept: a client asks for the same topics again and again."""

    def __init__(self, permissions: Permissions) -> None:
        self.permissions = permissions
        roles = [OPERATIONS[each] for each in USER_ROLES if each in permissions.roles]
        self._others = {
            kind: frozenset[Operation]().union(*(role.get(kind, ()) for role in roles))
            for kind in Resource
        }
        self._topics = RecentNames[frozenset[Operation]](MAX_TOPICS)

    def operations(self, resource: Resource, name: str = "") -> frozenset[Operation]:
        """What may be done there."""
        if resource is not Resource.TOPIC:
            return self._others[resource]
        found = self._topics.get(name)
        if found is None:
            found = self._of_topic(name)
            self._topics.keep(name, found)
        return found

    @property
    def sees_all(self) -> bool:
        """Whether there is no topic that is hidden from it.

        Internal ones, which who produces may not know, are not there for clients of Kafka.
        """
        held = self.permissions
        return held.knows_all or (PRODUCE in held.roles and _ALL in held.produce)

    def may(self, need: Need, name: str = "") -> bool:
        """Whether an operation is allowed."""
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
    """How an ACL names resources, by Kafka's numbers."""

    LITERAL = 3
    PREFIXED = 4


class Acl(NamedTuple):
    """One line of what Kafka's tools list."""

    resource: Resource
    name: str
    pattern: Pattern
    user: str
    operation: Operation


def acls(permissions: Permissions) -> Iterator[Acl]:
    """What a user may do, as Kafka lists it.

    Its patterns know a name and a beginning of names.  Another one is named as it is written.
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
        self._file = PrivateFile(file, "dafka kafka-user", _parse_users)
        self._secret = secrets.token_bytes(32)
        self.guesses = Guesses()
        """Wrong passwords, of whatever user."""
        self.threads = ThreadPoolExecutor(HASHING_THREADS, "dafka-kafka-password")
        """For ``knows``, which takes a processor while it lasts: nothing else waits there."""
        try:
            self._known = self._file.read()
        except ValueError as error:
            raise ConfigError("kafka_users", file, str(error)) from None

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
        log = partial(_log.error, "Kafka: users: %s; nobody is let in")
        self._known = self._file.reread({}, log)

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


def _parse_users(octets: bytes) -> Mapping[str, _User]:
    known: dict[str, _User] = {}
    try:
        lines = octets.decode().splitlines()
    except ValueError:
        raise ValueError("must be a file that 'dafka kafka-user' made (it is no text)") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
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
            raise ValueError(f"says nothing of the roles of user {printable(name)!r}: {cure}")
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
