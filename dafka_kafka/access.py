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
_ASKED_OPERATIONS: Final[Mapping[int, Sequence[str]]] = MappingProxyType(
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
        if api_key == Api.METADATA and not is_all:
            # In version 0 an empty list means all topics.
            version = client.version or int(not request.topics)
            may_make = partial(self._may_make, client, rights)
            response = await handler(request, replace(client, version=version, may_make=may_make))
        else:
            may = partial(self._may, api_key, client, rights)
            response = await handler(request, replace(client, may=may))
        if not (refused or _tells(api_key, request) or (is_all and not rights.sees_all)):
            return response
        if response is None:
            why = "a request without an answer asked for what its user may not do"
            raise ProtocolError(why)
        is_encoded = isinstance(response, EncodedResponse)
        # The cache in ``Rights`` belongs to the loop.
        held = Rights(rights.permissions) if is_encoded else rights
        work = _Completion(api_key, rule, request, held, refused, is_all=is_all)
        if is_encoded:
            return await asyncio.to_thread(work.encoded, response, client.version)
        return work.completed(response)

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


class _Completion:
    """Adds refusals and permitted operations to a response."""

    def __init__(
        self,
        api_key: int,
        rule: Rule,
        request: Any,
        rights: Rights,
        refused: Sequence[Any],
        *,
        is_all: bool,
    ) -> None:
        self._api_key = api_key
        self._rule = rule
        self._request = request
        self._rights = rights
        self._refused = refused
        self._is_all = is_all

    def encoded(self, response: EncodedResponse, version: int) -> EncodedResponse:
        """Complete an encoded response; in a thread, as it may be large."""
        octets = b"".join(response.pieces)
        decoded = schemas.decode_response(self._api_key, version, octets)
        return EncodedResponse([self.completed(decoded).encode(version=version)])

    def completed(self, response: Any) -> Any:
        """Return the response with refusals and operations, and without hidden topics."""
        request, rights = self._request, self._rights
        if self._is_all:
            response.topics = [each for each in response.topics if rights.may(_SEE, each.name)]
        for field in filter(partial(getattr, request), _ASKED_OPERATIONS.get(self._api_key, ())):
            if field == _OF_CLUSTER:
                response.authorized_operations = rights.operations(Resource.CLUSTER)
            elif field == _OF_TOPICS:
                for each in response.topics:
                    each.authorized_operations = rights.operations(Resource.TOPIC, each.name)
            else:
                for each in response.groups:
                    each.authorized_operations = rights.operations(Resource.GROUP)
        _add_refusals(self._api_key, response, self._rule, self._refused)
        return response


def _is_all(api_key: int, request: Any, version: int) -> bool:
    if api_key != Api.METADATA:
        return False
    return request.topics is None or (version == 0 and not request.topics)


def _tells(api_key: int, request: Any) -> bool:
    return any(getattr(request, each) for each in _ASKED_OPERATIONS.get(api_key, ()))


def _refusal(api_key: int, request: Any, rule: Rule, version: int) -> Any:
    assert rule.whole is not None
    error = KafkaError.NONE if rule.is_hidden else REFUSALS[rule.whole.resource]
    response = schemas.empty_response(api_key, version, error, WHY if error else None)
    if rule.each is not None:
        setattr(response, rule.answered, [])
        asked = getattr(request, rule.asked) or ()
        _add_refusals(api_key, response, rule, [(each, error) for each in asked])
    return response


def _add_refusals(
    api_key: int, response: Any, rule: Rule, refused: Sequence[tuple[Any, KafkaError]]
) -> None:
    for part, error in refused:
        made = schemas.made_part(api_key, rule.answered, rule.refused(part, error))
        getattr(response, rule.answered).append(made)
