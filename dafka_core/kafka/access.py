"""Has requests answered as far as their user may ask: the one place where that is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.kafka import schemas
from dafka_core.kafka.access_rules import RULES, WHY, Rule
from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.gateway_node import Client, EncodedResponse, Handler, Response
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.rights import REFUSALS, Need, Operation, Resource, Rights
from dafka_core.kafka.traffic import Complaints
from dafka_core.names import printable

DENIED: Final = "requests for what their user may not do"

SAY_AGAIN_S: Final = 60.0
"""How often it is said of a user and a kind of request: clients ask again and again."""

MAX_NAME: Final = 200
"""Characters of a name in the log: anybody may make one up."""

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
"""By which fields of a request its client asks what it may do."""


class Access:
    """Judges requests of users, and answers what is not allowed."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints

    async def answer(
        self, api_key: int, request: Any, client: Client, rights: Rights, handler: Handler
    ) -> Response:
        """What ``handler`` answers to what is allowed, and the refusal of the rest.

        Raises:
            ProtocolError: the client waits for no answer, and is to know all the same.
        """
        rule = RULES[api_key]
        if rule.whole is not None and not rights.may(rule.whole) and rule.only_if(request):
            self._note(api_key, client, rights, rule.whole)
            return _refusal(api_key, request, rule, client.version)
        is_all = _is_all(api_key, request, client.version)
        refused = [] if is_all else self._taken_out(api_key, request, client, rights)
        if api_key == Api.METADATA and not is_all:
            # In the oldest version a list without topics means all.
            version = client.version or int(not request.topics)
            may_make = partial(self._may_make, client, rights)
            response = await handler(request, replace(client, version=version, may_make=may_make))
        else:
            response = await handler(request, client)
        if not (refused or _tells(api_key, request) or (is_all and not rights.sees_all)):
            return response
        if response is None:
            why = "a request without an answer asked for what its user may not do"
            raise ProtocolError(why)
        is_encoded = isinstance(response, EncodedResponse)
        # What a user's rights keep of topics is for the loop alone.
        held = Rights(rights.permissions) if is_encoded else rights
        work = _Completion(api_key, request, held, refused, is_all=is_all)
        if is_encoded:
            return await asyncio.to_thread(work.encoded, response, client.version)
        return work.completed(response)

    def _taken_out(
        self, api_key: int, request: Any, client: Client, rights: Rights
    ) -> Sequence[Any]:
        rule = RULES[api_key]
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
            request.min_bytes = 0  # who is told of an error is not to wait for records
        return errors

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
    """Adds to a response what its user is told beside what was answered."""

    def __init__(
        self, api_key: int, request: Any, rights: Rights, refused: Sequence[Any], *, is_all: bool
    ) -> None:
        self._api_key = api_key
        self._request = request
        self._rights = rights
        self._refused = refused
        self._is_all = is_all

    def encoded(self, response: EncodedResponse, version: int) -> EncodedResponse:
        """The same of octets: for a thread, as they may be many."""
        octets = b"".join(response.pieces)
        decoded = schemas.decode_response(self._api_key, version, octets)
        return EncodedResponse([self.completed(decoded).encode(version=version)])

    def completed(self, response: Any) -> Any:
        """The response with refusals, without what may not be seen, and with operations."""
        rule, request, rights = RULES[self._api_key], self._request, self._rights
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
        for part, error in self._refused:
            getattr(response, rule.answered).append(rule.refusal(part, error))
        return response


def _is_all(api_key: int, request: Any, version: int) -> bool:
    if api_key == Api.METADATA:
        return request.topics is None or (version == 0 and not request.topics)
    return api_key == Api.OFFSET_FETCH and request.topics is None


def _tells(api_key: int, request: Any) -> bool:
    return any(getattr(request, each) for each in _ASKED_OPERATIONS.get(api_key, ()))


def _refusal(api_key: int, request: Any, rule: Rule, version: int) -> Any:
    assert rule.whole is not None
    error = KafkaError.NONE if rule.is_hidden else REFUSALS[rule.whole.resource]
    response = schemas.empty_response(api_key, version, error, WHY if error else None)
    if rule.answered:
        parts = getattr(request, rule.asked) or ()
        setattr(response, rule.answered, [rule.refusal(each, error) for each in parts])
    return response
