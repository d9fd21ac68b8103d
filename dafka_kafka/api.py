"""The APIs of Kafka's protocol, and how a feature of the gateway serves one.

A feature declares each handler with ``serves``: its API, the versions, and the permissions that a
request requires. ``gateway.FEATURES`` is the list of all features.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType, MethodType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from dafka_kafka import schemas
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.users import Need, Operation, Resource


class Api(IntEnum):
    """API keys by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_CLUSTER = 60
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request, and the request's API version."""

    client_id: str
    host: str
    version: int
    is_gone: Callable[[], bool] = field(default=lambda: False, repr=False)
    """True if the connection is closed: nobody reads the response."""
    may_make: Callable[[str], bool] = field(default=lambda _: True, repr=False)
    """Return whether a missing topic may be created."""
    may: Callable[..., bool] = field(default=lambda *_, **__: True, repr=False)
    """Return whether a ``Need`` that the API's rule does not contain is met for a named resource;
    a refusal is logged unless ``is_noted`` is False."""


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """An encoded response body, in pieces that need not be joined."""

    pieces: Sequence[bytes | bytearray | memoryview]


Response = Any | EncodedResponse | None
"""A message of ``schemas``, its encoded body, or None where the client expects none (acks=0)."""

Answer = dict[str, Any]
"""The fields of a response, with structures as such mappings; ``schemas`` makes the message."""

Handler = Callable[[Any, Client], Awaitable[Response]]
"""Handles a request in the gateway's event loop, without blocking it. A ProtocolError closes the
connection, and a RefusedError is the error of the whole response; any other error is answered with
UNKNOWN_SERVER_ERROR and logged. The handler is cancelled when the client disconnects; work that
must complete is shielded."""


WHY: Final = "the user may not do this: 'dafka kafka-user show' lists what each one may"
"""The reason that clients get where Kafka has a field for it."""

Named = Callable[[Any], tuple[Need, str]]
Refused = Callable[[Any, KafkaError], Mapping[str, Any]]


def refuse_one(field: str = "name", named: str = "name", **more: Any) -> Refused:
    """Refuse an element by its name; ``named`` is the request's field with the name, if any."""
    return lambda each, error: {
        field: getattr(each, named) if named else each,
        "error_code": error,
        **more,
    }


REFUSE_BY_NAME: Final = refuse_one()


def refuse_partitions(
    asked: str = "partitions",
    *,
    number: str = "partition_index",
    in_request: str = "partition_index",
    name: str = "name",
    listed: str = "partitions",
    **unknown: Any,
) -> Refused:
    """Refuse each partition of a topic; ``unknown`` are values for its other fields."""

    def refused(topic: Any, error: KafkaError) -> Mapping[str, Any]:
        numbers = [getattr(each, in_request, each) for each in getattr(topic, asked)]
        parts = [{number: each, "error_code": error, **unknown} for each in numbers]
        return {name: getattr(topic, name), listed: parts}

    return refused


def refuse_resource(**more: Any) -> Refused:
    """Refuse a resource of configs."""
    return lambda each, error: {
        "error_code": error,
        "error_message": WHY,
        "resource_type": each.resource_type,
        "resource_name": each.resource_name,
        **more,
    }


@dataclass(frozen=True)
class Rule:
    """The permissions that an API requires.

    Args:
        whole: for the request as a whole.
        each: returns the permission required for one element of a list in the request, and its
            name; None if the request has no list.
        asked: the request's field with that list.
        answered: the response's field with their results.
        refused: makes the fields of the result of a refused one.
        is_hidden: a refused client gets an empty list instead of an error.
    """

    whole: Need | None = None
    each: Named | None = None
    asked: str = "topics"
    answered: str = "topics"
    refused: Refused = REFUSE_BY_NAME
    is_hidden: bool = False


def on_topics(operation: Operation) -> Need:
    """Require an operation on topics."""
    return Need(Resource.TOPIC, operation)


def on_groups(operation: Operation) -> Need:
    """Require an operation on groups."""
    return Need(Resource.GROUP, operation)


def on_cluster(operation: Operation) -> Need:
    """Require an operation on the cluster."""
    return Need(Resource.CLUSTER, operation)


def named_topic(operation: Operation, name: str = "name") -> Named:
    """Require an operation on listed topics, with their names in field ``name``."""
    need = on_topics(operation)
    return lambda each: (need, getattr(each, name) or "")


def plain_name(need: Need) -> Named:
    """The listed elements are the names."""
    return lambda each: (need, each)


def named_resource(operation: Operation) -> Named:
    """Require an operation on listed resources of configs."""

    def needs(each: Any) -> tuple[Need, str]:
        is_topic = each.resource_type == Resource.TOPIC
        kind = Resource.TOPIC if is_topic else Resource.CLUSTER
        return Need(kind, operation), each.resource_name

    return needs


async def outcome(work: Awaitable[object]) -> Answer:
    """Return the error of some work, which may raise RefusedError, as fields of a result."""
    try:
        await work
    except RefusedError as refused:
        return {"error_code": refused.code, "error_message": refused.why}
    return {"error_code": KafkaError.NONE, "error_message": None}


class Served(NamedTuple):
    """An API as the gateway serves it.

    Versions end before those that name topics by ids, as topics have none here. They begin at 0
    although current clients use later ones: older librdkafka takes a range that begins later for a
    broker with fewer features. Without a rule the API is available before authentication.
    """

    handler: Handler
    versions: range
    rule: Rule | None


Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


def serves(api: Api, versions: range, rule: Rule | None) -> Callable[[Method], Method]:
    """Declare a feature's method as the handler of an API; it may return an ``Answer``."""

    def declare(method: Method) -> Method:
        async def handle(feature: Any, request: Any, client: Client) -> Response:
            try:
                answer = await method(feature, request, client)
            except RefusedError as refused:
                why = refused.why or None
                return schemas.empty_response(api, client.version, refused.code, why)
            return schemas.made_response(api, answer) if isinstance(answer, dict) else answer

        unbound: Callable[..., Awaitable[Response]] = handle
        declared = getattr(method, "serves", ())
        served = Served(unbound, versions, rule)
        setattr(method, "serves", (*declared, (api, served)))  # noqa: B010
        return method

    return declare


class Feature:
    """A part of the gateway that implements some APIs."""

    declared: ClassVar[Mapping[int, Served]] = MappingProxyType({})
    """The APIs, with unbound handlers."""

    def __init_subclass__(cls) -> None:
        methods = vars(cls).values()
        cls.declared = dict(each for method in methods for each in getattr(method, "serves", ()))

    @property
    def apis(self) -> dict[int, Served]:
        """The APIs, with this object's handlers."""
        return {
            api: each._replace(handler=MethodType(each.handler, self))
            for api, each in self.declared.items()
        }

    async def start(self) -> None:
        """Start in the loop, before the first request."""

    async def close(self) -> None:
        """Close, after the last request."""
