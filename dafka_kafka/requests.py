"""Requests: their headers, their dispatch to handlers, and the encoding of responses."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.model.names import printable
from dafka_kafka import schemas
from dafka_kafka.api import Api, Client, EncodedResponse, Served
from dafka_kafka.api_versions import VERSIONS, api_versions
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Complaints
from dafka_kafka.options import Limits
from dafka_kafka.sasl import Sasl
from dafka_kafka.users import Resource

_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_FIRST_FLEXIBLE: Final = 9

_ANSWER: Final = struct.Struct(">ihqqq")
_ANSWER_BYTES: Final = (14, 14, 22, 22, 22, 30, 30, 30, 30)
"""The layout of a partition's response by version up to 8, which later ones share: it has two,
three or all of the last three fields."""

_FIRST_WITH_THROTTLING: Final = 1
_FIRST_WITH_REASONS: Final = 8


class PartitionAnswer(NamedTuple):
    """The result for one partition of a Produce request: its offsets, or an error."""

    topic: str
    number: int
    error: int
    base_offset: int
    why: str | None = None
    log_start: int = -1


def encoded_answers(answers: Iterable[PartitionAnswer], version: int) -> bytes:
    """Encode the body of a Produce response."""
    flexible = version >= _FIRST_FLEXIBLE
    size, tags = (_compact_size, b"\0") if flexible else (_COUNT.pack, b"")
    topics: dict[str, list[PartitionAnswer]] = {}
    for each in answers:
        topics.setdefault(each.topic, []).append(each)
    pieces = [size(len(topics))]
    for topic, parts in topics.items():
        pieces += _text(topic, flexible), size(len(parts))
        for each in parts:
            append_time = -1
            offsets = each.base_offset, append_time, each.log_start
            fields = _ANSWER.pack(each.number, each.error, *offsets)
            pieces.append(fields[: _ANSWER_BYTES[min(version, _FIRST_WITH_REASONS)]])
            if version >= _FIRST_WITH_REASONS:
                pieces += size(0), _text(each.why, flexible), tags
        pieces.append(tags)
    if version >= _FIRST_WITH_THROTTLING:
        pieces += _COUNT.pack(0), tags
    return b"".join(pieces)


def _compact_size(size: int) -> bytes:
    return schemas.encoded_varint(size + 1)


def _text(text: str | None, flexible: bool) -> bytes:
    size = _compact_size if flexible else _LENGTH.pack
    octets = b"" if text is None else text.encode()
    return size(-1 if text is None else len(octets)) + octets


_log: Final = logging.getLogger("dafka.kafka")

Pieces = Sequence[bytes | bytearray | memoryview]

_HEAD: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">i")

FAILED: Final = "requests that failed here"
DENIED: Final = "requests for what their user may not do"

DENIED_AGAIN_S: Final = 60.0  # interval between log lines for a user and an API: clients retry
MAX_NAME: Final = 200  # length of a name in the log: clients can invent names


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The header of a request; the body begins at index ``start``."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    start: int


def parse_head(octets: memoryview, apis: Mapping[int, Served]) -> RequestHead:
    """Parse the header of a request, possibly of an API that is not served.

    Raises:
        ProtocolError: the bytes do not begin with a header.
    """
    if len(octets) < _HEAD.size:
        raise ProtocolError(f"a request of {len(octets)} bytes, which has no header")
    api_key, version, correlation_id, length = _HEAD.unpack_from(octets)
    start = _HEAD.size + max(length, 0)
    if length < -1 or start > len(octets):
        raise ProtocolError(f"a request with a client id of length {length}")
    client_id = str(octets[_HEAD.size : start], "utf-8", "replace")
    is_known = any(is_served(each, api_key, version) for each in (apis, Sasl.declared))
    if is_known and schemas.is_flexible(api_key, version):
        try:
            start = schemas.after_tags(octets, start)
        except (IndexError, ValueError) as error:
            raise ProtocolError(f"a request with invalid tagged fields: {error}") from None
    return RequestHead(api_key, version, correlation_id, client_id, start)


def is_served(apis: Mapping[int, Served], api_key: int, version: int) -> bool:
    """Return whether an API is served in this version."""
    if api_key == Api.API_VERSIONS:
        return version in VERSIONS
    return api_key in apis and version in apis[api_key].versions


class Requests:
    """Dispatches requests to their handlers.

    Args:
        apis: all but ApiVersions, which is answered here.
    """

    def __init__(self, apis: Mapping[int, Served], limits: Limits, complaints: Complaints) -> None:
        self.apis = apis
        self._limits = limits
        self._complaints = complaints
        self.counts = Counter[int]()
        """The number of requests in served APIs and versions, by API key."""

    async def answer(
        self,
        head: RequestHead,
        octets: memoryview,
        host: str,
        is_gone: Callable[[], bool],
        sasl: Sasl | None = None,
    ) -> Pieces:
        """Return the pieces of the encoded response; none if the client expects none.

        Raises:
            ProtocolError: the request has no possible response: close the connection.
        """
        apis = self.apis if sasl is None else sasl.available(head.api_key, self.apis)
        if head.api_key == Api.API_VERSIONS and head.version not in VERSIONS:
            # KIP-511: an unknown version is answered in version 0, which every client can read.
            response = api_versions(apis, KafkaError.UNSUPPORTED_VERSION)
            return [schemas.encode_response(head.correlation_id, response, 0)]
        if not is_served(apis, head.api_key, head.version):
            return self._refusal(head, KafkaError.UNSUPPORTED_VERSION)
        self._check_size(head, octets)
        self.counts[head.api_key] += 1
        request = schemas.decode_request(head.api_key, head.version, octets, head.start)
        rights = None if sasl is None else sasl.rights
        client = Client(head.client_id, host, head.version, is_gone, rights)
        try:
            if head.api_key == Api.API_VERSIONS:
                response = api_versions(apis)
            else:
                response = await apis[head.api_key].handler(request, client)
            return self._encoded(head, response)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 -- a defect must not end the gateway
            return self._failed(head, host, error)
        finally:
            if client.refused:
                self._note_refusal(head.api_key, client)

    def _note_refusal(self, api_key: int, client: Client) -> None:
        assert client.rights is not None
        (need, name), user = client.refused[0], client.rights.permissions.name
        named = need.resource.name.lower()
        if name and need.resource is Resource.TOPIC:
            named += f" {printable(name[:MAX_NAME])!r}"
        why = f"{user} may not {Api(api_key).name}: it needs {need.operation.name} on {named}"
        of = user, api_key
        self._complaints.note(DENIED, client.host, why, of=of, again_s=DENIED_AGAIN_S)

    def _check_size(self, head: RequestHead, octets: memoryview) -> None:
        """Raise ProtocolError for a request that would take too much memory to decode."""
        limit_bytes = self._limits.max_request_bytes
        if len(octets) > limit_bytes and head.api_key != Api.PRODUCE:
            size = f"{len(octets)} bytes of kind {head.api_key}"
            raise ProtocolError(f"a request of {size}, which may have {limit_bytes}")

    def _encoded(self, head: RequestHead, response: Any) -> Pieces:
        if response is None:
            return []
        if not isinstance(response, EncodedResponse):
            return [schemas.encode_response(head.correlation_id, response, head.version)]
        front = schemas.response_head(head.correlation_id, head.api_key, head.version)
        size_bytes = len(front) + sum(map(len, response.pieces))
        return [_SIZE.pack(size_bytes) + front, *response.pieces]

    def _refusal(self, head: RequestHead, error: KafkaError) -> Pieces:
        response = schemas.error_response(head.api_key, head.version, error)
        if response is None:
            # Kafka, too, closes the connection: without a version no response can be encoded.
            kind = f"kind {head.api_key} in version {head.version}"
            raise ProtocolError(f"a request of {kind}, to which there is no answer ({error.name})")
        return [schemas.encode_response(head.correlation_id, response, head.version)]

    def _failed(self, head: RequestHead, host: str, error: Exception) -> Pieces:
        if not self._complaints.counts[FAILED]:
            _log.error("Kafka: a request of kind %d failed", head.api_key, exc_info=error)
        self._complaints.note(FAILED, host, f"kind {head.api_key}: {printable(repr(error))}")
        return self._refusal(head, KafkaError.UNKNOWN_SERVER_ERROR)
