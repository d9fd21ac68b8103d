"""Kafka's messages, as classes of kafka-python; no other module imports that library.

The classes are made of Kafka's own schemas: a class has the fields of all versions, and a field
that a version lacks has its default. A structure within a message is a class within its class, as
``MetadataResponse.MetadataResponseBroker``. https://kafka.apache.org/protocol documents them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from dafka_core.errors import ConfigError, ProtocolError

try:
    from kafka.protocol import admin, consumer, metadata, producer, sasl
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32
except ImportError:
    _why = "needs kafka-python: pip install 'dafka-spark[kafka]'"
    raise ConfigError("kafka", True, _why) from None

MESSAGES: Final[dict[str, Any]] = {
    name: each
    for part in (admin, consumer, metadata, producer, sasl)
    for name, each in vars(part).items()
    if isinstance(each, type) and issubclass(each, ApiMessage) and each is not ApiMessage
}
_REQUESTS: Final = {each.API_KEY: each for each in MESSAGES.values() if each.is_request()}
_RESPONSES: Final = {each.API_KEY: each for each in MESSAGES.values() if not each.is_request()}


# kafka-python decodes what brokers send, and generates the code that does it. For requests, which
# may come from anybody, two parts of that code take quadratic time: a number of any length, and
# tagged fields, for which the rest of the message is copied. It has no limits, and accepts nulls.

_MAX_SHIFT: Final = 28


def varint(octets: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned number of variable length at an index, and the index behind it.

    Raises:
        IndexError: it is cut short.
        ValueError: it has more than 32 bits.
    """
    value = shift = 0
    while True:
        octet = octets[at]
        value |= (octet & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if octet < 0x80:
            return value, at
        if shift > _MAX_SHIFT:
            raise ValueError("a number of more than 32 bits")


def after_tags(octets: memoryview, at: int) -> int:
    """Return the index behind tagged fields; raises as ``varint``.

    A gateway needs none of those that Kafka's requests have.
    """
    count, at = varint(octets, at)
    for _ in range(count):
        _, at = varint(octets, at)
        size, at = varint(octets, at)
        at += size
    return at


def encoded_varint(number: int) -> bytes:
    """Encode an unsigned number with variable length."""
    octets: bytes = UnsignedVarInt32.encode(number)
    return octets


def _emit_varint(ctx: Any, name: str, indent: str) -> None:
    ctx.globs["_varint"] = varint
    ctx.emit(indent, f"{name} = data[pos]")
    ctx.emit(indent, "pos += 1")
    ctx.emit(indent, f"if {name} > 127: {name}, pos = _varint(data, pos - 1)")


def _emit_after_tags(ctx: Any, name: str, indent: str, version: int) -> None:
    ctx.globs["_after_tags"] = after_tags
    ctx.emit(indent, "pos = _after_tags(data, pos)")


def _harden(structure: Any) -> None:
    """Have the code that decodes a structure skip tagged fields, and refuse nulls."""
    structure._emit_tagged_decode = _emit_after_tags  # noqa: SLF001 -- of requests only
    for each in structure.fields.values():
        inside = each.array_of if each.is_array() else each
        if each.is_array() or not (each.is_batchable() or each.type_str == _UUID):
            _refuse_null(each, each.name, each.nullable_for_version_q)
        if inside.is_struct():
            _harden(inside)
        elif each.is_array() and not inside.is_batchable():
            _refuse_null(inside, f"one of {each.name}", lambda version: False)


_UUID: Final = "uuid"  # a type of which the library decodes zero as None


def _refuse_null(field: Any, named: str, may_be_null: Callable[[int], bool]) -> None:
    """Refuse a null in a field that is not nullable, which the library accepts."""
    emit = field.emit_decode_from

    def emit_checked(ctx: Any, name: str, indent: str, version: int, **form: Any) -> None:
        emit(ctx, name, indent, version=version, **form)
        if not may_be_null(version):
            ctx.globs["_null"] = _null
            ctx.emit(indent, f"if {name} is None: _null({named!r})")

    field.emit_decode_from = emit_checked


def _null(named: str) -> None:
    raise ValueError(f"{named} is null")


UnsignedVarInt32.emit_decode_from = staticmethod(_emit_varint)
for _request in _REQUESTS.values():
    _harden(_request._struct)  # noqa: SLF001


MAX_PARTITIONS: Final = 20_000
"""Partitions and topics in a Produce request, which may be large. Each takes few bytes there, and
some hundred as a Python object; a producer sends to a few hundred partitions at once."""


def _limit_partitions(structure: Any, *statements: str) -> None:
    """Have the code that decodes a structure run statements first, and count structures in it."""
    emit = structure.emit_decode_from

    def emit_limited(ctx: Any, name: str, indent: str, **form: Any) -> None:
        ctx.globs["_refuse"] = _refuse_partitions
        for each in statements:
            ctx.emit(indent, each)
        emit(ctx, name, indent, **form)

    structure.emit_decode_from = emit_limited
    for each in structure.fields.values():
        if each.is_struct_array():
            _limit_partitions(each.array_of, "left -= 1", "if left < 0: _refuse()")


def _refuse_partitions() -> None:
    raise ProtocolError(f"a request with records for more than {MAX_PARTITIONS} partitions")


_limit_partitions(MESSAGES["ProduceRequest"]._struct, f"left = {MAX_PARTITIONS}")  # noqa: SLF001


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether the request, and its header, have tagged fields in this version."""
    return bool(_REQUESTS[api_key].flexible_version_q(version))


def decode_request(api_key: int, version: int, octets: memoryview, start: int) -> Any:
    """Decode the request whose body begins at ``start``.

    Further bytes after it are ignored, as Kafka does.

    Raises:
        ProtocolError: the bytes are not that request.
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
    if end > len(octets):  # the last string is truncated, which the library accepts
        raise ProtocolError(f"a {kind.__name__} of version {version} that is cut short")
    return request


def encode_response(correlation_id: int, response: Any, version: int) -> bytearray:
    """Encode a response with its size and header, ready to send."""
    response.API_VERSION = version
    response.with_header(correlation_id)
    octets: bytearray = response.encode(header=True, framed=True)
    return octets


def response_head(correlation_id: int, api_key: int, version: int) -> bytes:
    """Encode the header of a response, without its body; not for ApiVersions."""
    tags = b"\0" if is_flexible(api_key, version) else b""
    return struct.pack(">i", correlation_id) + tags


@functools.cache
def _structures(kind: Any) -> dict[str, Any]:
    """Return the classes of a structure's fields that are structures, or arrays of them."""
    fields = kind.fields.items()
    return {
        name: each.data_class for name, each in fields if each.is_struct_array() or each.is_struct()
    }


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    made = dict(values)
    for name in _structures(kind).keys() & made.keys():
        inner, value = _structures(kind)[name], made[name]
        if isinstance(value, Mapping):
            made[name] = _made(inner, value)
        elif value is not None:
            made[name] = [
                _made(inner, each) if isinstance(each, Mapping) else each for each in value
            ]
    return kind(**made)


def made_response(api_key: int, values: Mapping[str, Any]) -> Any:
    """Return a response with the values of its fields, and structures as mappings of theirs.

    Fields without a value have Kafka's defaults.
    """
    return _made(_RESPONSES[api_key], values)


def empty_response(api_key: int, version: int, error: int, why: str | None) -> Any:
    """Return an empty response with an error, and its reason where Kafka has a field for it."""
    kind, told = _RESPONSES[api_key], {"error_code": int(error), "error_message": why}
    has = {each for each in told if _has(kind, each, version)}
    return kind(version=version, **{each: told[each] for each in has})


def error_response(api_key: int, version: int, error: int) -> Any | None:
    """Return a response with an error only; None if it has no field for one."""
    kind = _RESPONSES.get(api_key)
    is_known = kind is not None and 0 <= version <= kind.max_version
    is_told = is_known and _has(kind, "error_code", version)
    return empty_response(api_key, version, error, None) if is_told else None


def _has(kind: Any, field: str, version: int) -> bool:
    return field in kind.fields and kind.fields[field].for_version_q(version)
