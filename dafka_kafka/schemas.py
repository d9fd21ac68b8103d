"""The messages of Kafka's protocol, as classes of kafka-python: this module alone imports it.

They are made of Kafka's own schemas: a class has the fields of all versions, and what a version has
not got has its default.  A structure within a message is a class within its class, as
``MetadataResponse.MetadataResponseBroker``.  Kafka's own messages are documented at
https://kafka.apache.org/protocol.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Final, NamedTuple

from dafka_core.errors import ConfigError, ProtocolError

try:
    from kafka.protocol import admin, consumer, metadata, producer, sasl
    from kafka.protocol.api_message import ApiMessage
except ImportError:
    _why = "needs kafka-python: pip install 'dafka-spark[kafka]'"
    raise ConfigError("kafka", True, _why) from None

_MESSAGES: Final[dict[str, Any]] = {
    name: each
    for part in (admin, consumer, metadata, producer, sasl)
    for name, each in vars(part).items()
    if isinstance(each, type) and issubclass(each, ApiMessage) and each is not ApiMessage
}
_REQUESTS: Final = {each.API_KEY: each for each in _MESSAGES.values() if each.is_request()}
_RESPONSES: Final = {each.API_KEY: each for each in _MESSAGES.values() if not each.is_request()}


def __getattr__(name: str) -> Any:
    """Any message by Kafka's name of it, as ``MetadataResponse``."""
    if name not in _MESSAGES:
        raise AttributeError(f"Kafka's protocol has no message {name!r}")
    return _MESSAGES[name]


def is_flexible(api_key: int, version: int) -> bool:
    """Whether the request is in Kafka's newer form, which has tagged fields; its header, too."""
    return bool(_REQUESTS[api_key].flexible_version_q(version))


def decode_request(api_key: int, version: int, octets: memoryview, start: int) -> Any:
    """The request whose body is ``octets`` from ``start`` on.

    Raises:
        ProtocolError: they are not that request.  More octets behind it are passed over, as Kafka
            does.
    """
    kind = _REQUESTS[api_key]
    flexible = is_flexible(api_key, version)
    decode = kind._struct.compiled_decode_from(  # noqa: SLF001 -- it alone says where it has ended
        version, compact=flexible, tagged=flexible, data_class=kind
    )
    try:
        request, end = decode(octets, start)
    except (struct.error, ValueError, IndexError, TypeError, OverflowError) as error:
        raise ProtocolError(f"not a {kind.__name__} of version {version}: {error}") from None
    try:
        _refuse_nulls(request, _parts_of_request(api_key, version))
    except ProtocolError as error:
        raise ProtocolError(f"not a {kind.__name__} of version {version}: {error}") from None
    if end > len(octets):  # its last text is cut short, of which the library says nothing
        raise ProtocolError(f"a {kind.__name__} of version {version} that is cut short")
    return request


class _Part(NamedTuple):
    """A text, an array or octets in a message, and what is in them."""

    name: str
    may_be_null: bool
    holds_texts: bool
    parts: tuple[_Part, ...]


@functools.cache
def _parts_of_request(api_key: int, version: int) -> tuple[_Part, ...]:
    return _parts(_REQUESTS[api_key]._struct, version)  # noqa: SLF001 -- the schema itself


def _parts(struct_field: Any, version: int) -> tuple[_Part, ...]:
    """The parts of a structure that could be null; of numbers there is nothing to check."""
    found = []
    for each in struct_field.untagged_fields(version):
        is_fixed = not each.is_array() and each.is_batchable()
        if not is_fixed:
            inner = _parts(each.array_of, version) if each.is_struct_array() else ()
            texts = each.is_array() and not (inner or each.is_struct_array())
            texts = texts and not each.array_of.is_batchable()
            found.append(_Part(each.name, each.nullable_for_version_q(version), texts, inner))
    return tuple(found)


def _refuse_nulls(message: Any, parts: tuple[_Part, ...]) -> None:
    """Raises ProtocolError for a null where Kafka has none, of which the library says nothing."""
    for part in parts:
        value = getattr(message, part.name)
        if value is None:
            if not part.may_be_null:
                raise ProtocolError(f"{part.name} is null")
        elif part.holds_texts and None in value:
            raise ProtocolError(f"one of {part.name} is null")
        elif part.parts:
            for each in value:
                _refuse_nulls(each, part.parts)


def encode_response(correlation_id: int, response: Any, version: int) -> bytearray:
    """A response with its header and its size in front: what goes over the connection."""
    response.API_VERSION = version
    response.with_header(correlation_id)
    octets: bytearray = response.encode(header=True, framed=True)
    return octets


def response_head(correlation_id: int, api_key: int, version: int) -> bytes:
    """The header of a response whose body the caller encodes itself; not of ApiVersions."""
    tags = b"\0" if is_flexible(api_key, version) else b""
    return struct.pack(">i", correlation_id) + tags


def decode_response(api_key: int, version: int, octets: bytes) -> Any:
    """The response whose body this process has encoded."""
    kind = _RESPONSES[api_key]
    found = kind.decode(octets, version=version)
    # What the library decodes without a header it does not encode again.
    return kind(version=version, **{each: getattr(found, each) for each in kind.fields})


def empty_response(api_key: int, version: int, error: int, why: str | None) -> Any:
    """A response with nothing in it; it says an error and why where Kafka's has a place."""
    told = {"error_code": int(error), "error_message": why}
    fields = _RESPONSES[api_key].fields
    has = {each for each in told if each in fields and fields[each].for_version_q(version)}
    return _RESPONSES[api_key](version=version, **{each: told[each] for each in has})


def error_response(api_key: int, version: int, error: int) -> Any | None:
    """A response that says nothing but an error; None where Kafka's has no place for it."""
    kind = _RESPONSES.get(api_key)
    if kind is None or not 0 <= version <= kind.max_version:
        return None
    field = kind.fields.get("error_code")
    if field is None or not field.for_version_q(version):
        return None
    return kind(version=version, error_code=int(error))
