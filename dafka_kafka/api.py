"""The APIs of Kafka's protocol, and how a feature of the gateway serves one.

A feature declares each handler with ``serves``: its API, the versions, and the permission that a
request as a whole requires. The handler checks those for parts of a request. ``gateway.FEATURES``
is the list of all features, and ApiVersions tells it to clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from types import MappingProxyType, MethodType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from dafka_kafka import schemas
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.users import REFUSALS, Need, Operation, Resource, Rights

_log: Final = logging.getLogger("dafka.kafka")


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


API_VERSIONS: Final = range(5)  # the versions of ApiVersions itself


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request, and the request's API version."""

    client_id: str
    host: str
    version: int
    is_gone: Callable[[], bool] = field(default=lambda: False, repr=False)
    """True if the connection is closed: nobody reads the response."""
    rights: Rights | None = None
    """The user's rights; None at a gateway without users, where everything is permitted."""
    refused: list[tuple[Need, str]] = field(default_factory=list, repr=False)
    """The needs that were not met, with their resources; the first one is logged."""

    def may(self, need: Need, name: str = "", *, is_noted: bool = True) -> bool:
        """Return whether an operation is permitted; a refusal is logged if it is noted."""
        if self.rights is None or self.rights.may(need, name):
            return True
        if is_noted:
            self.refused.append((need, name))
        return False

    def refusal(self, need: Need, name: str = "") -> KafkaError:
        """Return the error for an operation that is not permitted, else ``NONE``."""
        return KafkaError.NONE if self.may(need, name) else REFUSALS[need.resource]

    def check(self, need: Need, name: str = "") -> None:
        """Raise RefusedError unless an operation is permitted."""
        if error := self.refusal(need, name):
            raise RefusedError(error, WHY)

    def operations(self, resource: Resource, name: str = "") -> frozenset[Operation] | None:
        """Return the permitted operations on a resource; None at a gateway without users."""
        return None if self.rights is None else self.rights.operations(resource, name)


Answer = dict[str, Any]
"""The fields of a response, with structures as such mappings; ``schemas`` makes the message."""


def encoded(api: Api, version: int, answer: Answer) -> bytearray:
    """Encode an answer; in a thread for a large one, which would hold up the event loop."""
    octets: bytearray = schemas.made_response(api, answer).encode(version=version)
    return octets


Response = Any | bytes | bytearray | None
"""A message of ``schemas``, its encoded body, or None where the client expects none (acks=0)."""

Handler = Callable[[Any, Client], Awaitable[Response]]
"""Handles a request in the gateway's event loop, without blocking it. A ProtocolError closes the
connection, and a RefusedError is the error of the whole response; any other error is answered with
UNKNOWN_SERVER_ERROR and logged. The handler is cancelled when the client disconnects; work that
must complete is shielded."""


WHY: Final = "the user may not do this: 'dafka kafka-user show' lists what each one may"
"""The reason that clients get where Kafka has a field for it."""


on_topics: Final = partial(Need, Resource.TOPIC)
on_groups: Final = partial(Need, Resource.GROUP)
on_cluster: Final = partial(Need, Resource.CLUSTER)
"""Require an operation on topics, on groups, and on the cluster."""


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
    broker with fewer features.
    """

    handler: Handler
    versions: range
    need: Need | None


Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


def serves(api: Api, versions: range, need: Need | None = None) -> Callable[[Method], Method]:
    """Declare a feature's method as the handler of an API; it may return an ``Answer``.

    ``need`` is required for the request as a whole.
    """

    def declare(method: Method) -> Method:
        async def handle(feature: Any, request: Any, client: Client) -> Response:
            try:
                if need is not None:
                    client.check(need)
                answer = await method(feature, request, client)
            except RefusedError as refused:
                why = refused.why or None
                return schemas.empty_response(api, client.version, refused.code, why)
            return schemas.made_response(api, answer) if isinstance(answer, dict) else answer

        unbound: Callable[..., Awaitable[Response]] = handle
        declared = getattr(method, "serves", ())
        served = Served(unbound, versions, need)
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
        """Close, after the last request: cancel unfinished work."""
        for each in self._works:
            each.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work in the background, until the feature closes."""
        return self.hold(asyncio.create_task(work))

    def hold(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Cancel a task when the feature closes."""
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    async def to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Complete the work even if the client disconnects: half of it would remain otherwise."""
        task = self.begin(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_say_failure)
            raise

    @cached_property
    def _works(self) -> set[asyncio.Task[Any]]:
        return set()


def _say_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("what a client asked for that has gone is not done: %s", error)


def api_versions(served: Mapping[int, Served], error: KafkaError = KafkaError.NONE) -> Any:
    """Return the ApiVersions response for the ``served`` APIs."""
    versions = {api: each.versions for api, each in served.items()}
    versions[Api.API_VERSIONS] = API_VERSIONS
    keys = [
        {"api_key": int(key), "min_version": each[0], "max_version": each[-1]}
        for key, each in sorted(versions.items())
    ]
    return schemas.made_response(Api.API_VERSIONS, {"error_code": int(error), "api_keys": keys})


class NotInUse(Feature):
    """Quotas, transactions and reassignments, answered as by a broker that doesn't use them.

    Consoles and admin clients request them, and show an error if they get no answer.
    """

    @serves(Api.LIST_PARTITION_REASSIGNMENTS, range(1), on_cluster(Operation.DESCRIBE))
    async def _list_reassignments(self, request: Any, client: Client) -> Answer:
        return {"error_message": None}

    @serves(Api.DESCRIBE_CLIENT_QUOTAS, range(2), on_cluster(Operation.DESCRIBE_CONFIGS))
    async def _describe_quotas(self, request: Any, client: Client) -> Answer:
        return {"error_message": None}

    @serves(Api.LIST_TRANSACTIONS, range(3))
    async def _list_transactions(self, request: Any, client: Client) -> Answer:
        return {}
