"""Users of a gateway: names, password verifiers, roles and permissions, in a file.

``UserFile`` declares the file, a JSON object that only ``dafka kafka-user`` writes. A password can
only be guessed from its verifiers (RFC 5802).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple, Self

import msgspec
from msgspec import Meta

from dafka_core.errors import ConfigError
from dafka_core.model.json_message import convert, json_object
from dafka_core.model.names import printable
from dafka_core.protocol.limits import RecentNames
from dafka_core.security.permissions import (
    ADMIN,
    ALL_TOPICS,
    CONSUME,
    PRODUCE,
    Permissions,
    parse_roles,
)
from dafka_core.security.throttles import Guesses
from dafka_core.system.files import PrivateFile
from dafka_kafka.errors import KafkaError

# Permissions in Kafka's terms: operations on resources. One table lists those of each role.
# Requests are checked by it, and DescribeAcls and the operations in responses report it.


MAX_TOPICS: Final = 10_000  # cached answers: clients ask for any name

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

USER_ROLES: Final = tuple(OPERATIONS)  # the roles that a user may have

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


KEY_BYTES: Final = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}  # the length of keys by mechanism

SCRAM: Final = tuple(KEY_BYTES)

ITERATIONS: Final = 16_384
"""SCRAM iterations: about 10 ms for each guess, and for each new connection. Kafka's brokers have
4,096."""

MAX_ITERATIONS: Final = 1 << 20
SALT_BYTES: Final = 32
MAX_PASSWORD_BYTES: Final = 1_024

HASHING_THREADS: Final = 2  # processors that password checks may use

_NAME: Final = re.compile(r"[^\s,=\0-\x1f]{1,255}")
_log: Final = logging.getLogger("dafka.kafka")


class Verifier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verifier of a password for one mechanism (RFC 5802, section 3)."""

    salt: Annotated[bytes, Meta(min_length=1)]
    stored_key: bytes
    server_key: bytes
    iterations: Annotated[int, Meta(ge=4_096, le=MAX_ITERATIONS)]


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's verifiers by mechanism, and permissions."""

    verifiers: Annotated[dict[str, Verifier], Meta(min_length=1)]
    roles: tuple[str, ...]
    produce: tuple[str, ...] = ALL_TOPICS
    consume: tuple[str, ...] = ALL_TOPICS

    def check(self) -> None:
        """Raise ValueError if a role is unknown or not for users, or a key has a wrong length."""
        user_roles(self.roles)
        for mechanism, each in self.verifiers.items():
            if {len(each.stored_key), len(each.server_key)} != {KEY_BYTES.get(mechanism)}:
                raise ValueError(f"a key of another length than {mechanism} has")

    def permissions(self, name: str) -> Permissions:
        """Return the permissions of the user, who has this name in the file."""
        return Permissions(name, frozenset(self.roles), self.produce, self.consume)

    def with_permissions(self, held: Permissions) -> User:
        """Return the user with other permissions."""
        roles = tuple(each for each in USER_ROLES if each in held.roles)
        return User(self.verifiers, roles, held.produce, held.consume)


class UserFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's users by name, and the key of the salts that unknown users get."""

    salt_key: bytes = msgspec.field(default_factory=partial(secrets.token_bytes, 32))
    users: dict[str, User] = {}

    def packed(self) -> bytes:
        """Encode the file; names may contain bytes that are not UTF-8."""
        return json.dumps(msgspec.to_builtins(self), indent=1).encode()

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Decode a file; raise ValueError if it is invalid, without a secret of the file."""
        if (found := json_object(octets)) is None:
            raise ValueError("is no JSON object, as 'dafka kafka-user' writes it")
        try:
            file = convert(found, cls)
        except (ValueError, msgspec.ValidationError) as error:
            why = printable(str(error))
            raise ValueError(f"is not as 'dafka kafka-user' writes it: {why}") from None
        for name, user in file.users.items():
            try:
                _check_name(name)
                user.check()
            except ValueError as error:
                why = printable(f"has user {name!r}, and {error}")
                raise ValueError(why) from None
        return file


def verifier_of(mechanism: str, password: str, like: Verifier | None = None) -> Verifier:
    """Make a verifier, with a new salt or with the salt of ``like``.

    Kafka's clients hash passwords as they are, without the SASLprep of RFC 5802.

    Raises:
        ValueError: the password is invalid.
    """
    salt, iterations = secrets.token_bytes(SALT_BYTES), ITERATIONS
    if like:
        salt, iterations = like.salt, like.iterations
    try:
        octets = password.encode()
    except UnicodeError:
        raise ValueError("a password is text in UTF-8") from None
    if not 0 < len(octets) <= MAX_PASSWORD_BYTES or b"\0" in octets:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD_BYTES} octets, and none is 0")
    hashed = mechanism.removeprefix("SCRAM-").replace("-", "")
    salted = hashlib.pbkdf2_hmac(hashed, octets, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hashed)
    stored_key = hashlib.new(hashed, client_key).digest()
    return Verifier(salt, stored_key, hmac.digest(salted, b"Server Key", hashed), iterations)


def new_user(name: str, password: str, roles: Iterable[str]) -> User:
    """Return a user who may use all topics.

    Raises:
        ValueError: the name or the password is invalid.
    """
    _check_name(name)
    return User({each: verifier_of(each, password) for each in SCRAM}, tuple(roles))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 255 characters without spaces, ',' and '='")


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


class Users:
    """The users in a file, reloaded when it changes.

    Raises:
        ConfigError: the file is invalid, or readable by others.
    """

    def __init__(self, file: str) -> None:
        self._file = PrivateFile(file, "dafka kafka-user", self._parse)
        self._salt_key = b""
        self.guesses = Guesses()  # wrong passwords of all users, by client address
        self.threads = ThreadPoolExecutor(HASHING_THREADS, "dafka-kafka-password")
        """Threads for ``knows``, which keeps a processor busy."""
        try:
            self._known = self._file.read()
        except ValueError as error:
            raise ConfigError("kafka_users", file, str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def _parse(self, octets: bytes) -> Mapping[str, tuple[User, Rights]]:
        file = UserFile.parse(octets)
        if not file.users:
            raise ValueError("has no user: 'dafka kafka-user add NAME --kafka-users FILE' adds one")
        self._salt_key = file.salt_key
        return {name: (each, Rights(each.permissions(name))) for name, each in file.users.items()}

    def close(self) -> None:
        """Stop checking passwords."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def verifiers(self, name: str) -> Mapping[str, Verifier] | None:
        """Return a user's verifiers by mechanism; None for an unknown user."""
        found = self._known.get(name)
        return found and found[0].verifiers

    def rights(self, name: str) -> Rights | None:
        """Return a user's permissions; None for an unknown user."""
        found = self._known.get(name)
        return found and found[1]

    def permissions(self) -> list[Permissions]:
        """Return the permissions of all users, by name."""
        return [rights.permissions for _, (_, rights) in sorted(self._known.items())]

    def look(self) -> None:
        """Reload the file if it has changed; while it is invalid, all users are rejected."""
        log = partial(_log.error, "Kafka: users: %s; all are rejected")
        self._known = self._file.reread({}, log)

    def verifier(self, mechanism: str, name: str) -> Verifier:
        """Return the user's verifier; for an unknown user a fixed one that no password matches.

        So answers don't reveal which names exist, even beside those of another gateway or run.
        """
        if known := (self.verifiers(name) or {}).get(mechanism):
            return known
        size = KEY_BYTES[mechanism]
        named = f"{mechanism} {name}".encode("utf-8", "surrogatepass")
        salt = hmac.digest(self._salt_key, named, "sha256")
        return Verifier(salt, secrets.token_bytes(size), secrets.token_bytes(size), ITERATIONS)

    def knows(self, name: str, password: str) -> bool:
        """Check a password; takes the same time whether the user exists or not."""
        like = self.verifier(SCRAM[0], name)
        try:
            given = verifier_of(SCRAM[0], password, like)
        except ValueError:
            return False
        return hmac.compare_digest(given.stored_key, like.stored_key)
