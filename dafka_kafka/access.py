"""Access checks: the permissions that each API requires, and its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.model.names import printable
from dafka_kafka import schemas
from dafka_kafka.api import WHY, Api, Client, EncodedResponse, Response, Rule, Served
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Complaints
from dafka_kafka.users import REFUSALS, Need, Operation, Resource, Rights

DENIED: Final = "requests for what their user may not do"

SAY_AGAIN_S: Final = 60.0
"""Interval between log lines for a user and an API: clients retry."""

MAX_NAME: Final = 200
"""Length of a name in the log: clients can invent names."""

_MAKES: Final = frozenset({Operation.WRITE, Operation.CREATE})
_SEE: Final = Need(Resource.TOPIC, Operation.DESCRIBE)

_OF_CLUSTER: Final = "include_cluster_authorized_operations"
_OF_TOPICS: Final = "include_topic_authorized_operations"
_OPERATIONS: Final[Mapping[int, Sequence[str]]] = MappingProxyType(
    {
        Api.METADATA: (_OF_TOPICS, _OF_CLUSTER),
        Api.DESCRIBE_CLUSTER: (_OF_CLUSTER,),
        Api.DESCRIBE_GROUPS: ("include_authorized_operations",),
    }
)
"""Request fields by which clients ask for their permitted operations."""


class Access:
    """Checks requests of users, and refuses what is not permitted."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints

    async def answer(
        self, api_key: int, served: Served, request: Any, client: Client, rights: Rights
    ) -> Response:
        """Run the handler for the permitted parts, and add the refusals of the others.

        Raises:
            ProtocolError: refused, and the client expects no response: close the connection.
        """
        handler, rule = served.handler, served.rule
        assert rule is not None
        if rule.whole is not None and not rights.may(rule.whole):
            self._note(api_key, client, rights, rule.whole)
            return _refusal(api_key, request, rule, client.version)
        is_all = _is_all(api_key, request, client.version)
        refused = [] if is_all else self._taken_out(api_key, rule, request, client, rights)
        may = partial(self._may, api_key, client, rights)
        may_make = partial(self._may_make, client, rights)
        version = client.version
        if api_key == Api.METADATA and not is_all:
            # In version 0 an empty list means all topics.
            version = version or int(not request.topics)
        response = await handler(
            request, replace(client, version=version, may=may, may_make=may_make)
        )
        operations = [each for each in _OPERATIONS.get(api_key, ()) if getattr(request, each)]
        if not (refused or operations or (is_all and not rights.sees_all)):
            return response
        if response is None:
            why = "a request without an answer asked for what its user may not do"
            raise ProtocolError(why)

        def complete(response: Any, rights: Rights) -> Any:
            """Add refusals and permitted operations, and take hidden topics out."""
            if is_all:
                response.topics = [each for each in response.topics if rights.may(_SEE, each.name)]
            for field in operations:
                _add_operations(response, field, rights)
            _add_refusals(api_key, response, rule, refused)
            return response

        def complete_encoded() -> EncodedResponse:
            octets = b"".join(response.pieces)
            decoded = schemas.decode_response(api_key, client.version, octets)
            # The cache in ``Rights`` belongs to the loop.
            completed = complete(decoded, Rights(rights.permissions))
            return EncodedResponse([completed.encode(version=client.version)])

        if isinstance(response, EncodedResponse):  # it may be large
            return await asyncio.to_thread(complete_encoded)
        return complete(response, rights)

    def _taken_out(
        self, api_key: int, rule: Rule, request: Any, client: Client, rights: Rights
    ) -> Sequence[Any]:
        if rule.each is None:
            return ()
        asked = getattr(request, rule.asked)
        refused = [each for each in asked if not rights.may(*rule.each(each))]
        if not refused:
            return ()
        self._note(api_key, client, rights, *rule.each(refused[0]))
        errors = [(each, REFUSALS[rule.each(each)[0].resource]) for each in refused]
        setattr(request, rule.asked, [each for each in asked if rights.may(*rule.each(each))])
        if api_key == Api.FETCH:
            request.min_bytes = 0  # a client with an error should not wait for records
        return errors

    def _may(
        self,
        api_key: int,
        client: Client,
        rights: Rights,
        need: Need,
        name: str = "",
        *,
        is_noted: bool = True,
    ) -> bool:
        is_permitted = rights.may(need, name)
        if is_noted and not is_permitted:
            self._note(api_key, client, rights, need, name)
        return is_permitted

    def _may_make(self, client: Client, rights: Rights, topic: str) -> bool:
        if not _MAKES.isdisjoint(rights.operations(Resource.TOPIC, topic)):
            return True
        self._note(Api.METADATA, client, rights, Need(Resource.TOPIC, Operation.CREATE), topic)
        return False

    def _note(
        self, api_key: int, client: Client, rights: Rights, need: Need, name: str = ""
    ) -> None:
        user, api = rights.permissions.name, Api(api_key).name
        what = need.resource.name.lower()
        named = f"{what} {printable(name[:MAX_NAME])!r}" if name and what == "topic" else what
        why = f"{user} may not {api}: it needs {need.operation.name} on {named}"
        self._complaints.note(DENIED, client.host, why, of=(user, api_key), again_s=SAY_AGAIN_S)


def _add_operations(response: Any, field: str, rights: Rights) -> None:
    """Add the operations that a field of the request asks for."""
    if field == _OF_CLUSTER:
        response.authorized_operations = rights.operations(Resource.CLUSTER)
    elif field == _OF_TOPICS:
        for each in response.topics:
            each.authorized_operations = rights.operations(Resource.TOPIC, each.name)
    else:
        for each in response.groups:
            each.authorized_operations = rights.operations(Resource.GROUP)


def _is_all(api_key: int, request: Any, version: int) -> bool:
    if api_key != Api.METADATA:
        return False
    return request.topics is None or (version == 0 and not request.topics)


def _refusal(api_key: int, request: Any, rule: Rule, version: int) -> Any:
    assert rule.whole is not None
    error = KafkaError.NONE if rule.is_hidden else REFUSALS[rule.whole.resource]
    response = schemas.empty_response(api_key, version, error, WHY if error else None)
    if rule.each is not None:
        asked = getattr(request, rule.asked) or ()
        _add_refusals(api_key, response, rule, [(each, error) for each in asked])
    return response


def _add_refusals(
    api_key: int, response: Any, rule: Rule, refused: Sequence[tuple[Any, KafkaError]]
) -> None:
    if not refused:
        return
    made = [
        schemas.made_part(api_key, rule.answered, rule.refused(part, error))
        for part, error in refused
    ]
    # A new list: kafka-python shares the default one among all responses.
    setattr(response, rule.answered, [*getattr(response, rule.answered), *made])
