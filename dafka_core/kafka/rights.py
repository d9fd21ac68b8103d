"""What a user of a gateway may do, in Kafka's terms: which operations on which resources.

One table says what each role has.  Requests are judged by it (``access_rules``), and it is what
Kafka's tools are told of (DescribeAcls, and the operations that responses list).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.permissions import ADMIN, ALL_TOPICS, CONSUME, PRODUCE, Permissions
from dafka_core.protocol.recent_names import RecentNames

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
