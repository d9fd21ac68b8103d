"""Requests that no Kafka client sends, generated from a seed."""

import random
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dafka_kafka import schemas
from dafka_kafka.api import API_VERSIONS, Api
from dafka_kafka.gateway import APIS

TEXTS: Final = (b"t", b"u", b"g", b"", b"__dafka.x", b"\xff", b"a" * 300, b"range", b"consumer")
NUMBERS: Final = (0, 1, -1, 2, 3, 100, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 65_536)
SOON: Final = (0, 1, 10, -1)
"""Bound for times: the fuzzer waits for each answer."""

_FORMATS: Final = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q"}
_FORMATS_LATER: Final = {"bool": "?", "float64": "d"}


class Sent(NamedTuple):
    """Bytes for a connection, and whether the client closes it after sending them."""

    octets: bytes
    is_cut: bool


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def body(of: Any, version: int, chance: random.Random, *, flexible: bool) -> bytes:
    """Encode a structure by its schema, with random values."""
    fields = of.untagged_fields(version)
    found = b"".join(_value(each, version, chance, flexible=flexible) for each in fields)
    return found + tags(chance) if flexible else found


def tags(chance: random.Random) -> bytes:
    """Encode tagged fields: mostly none, and some with sizes that are not theirs."""
    if chance.random() < 0.9:
        return b"\0"
    numbers = sorted(chance.choice((0, 1, 100, 2**31)) for _ in range(chance.choice((1, 2, 50))))
    content = chance.randbytes(chance.choice((0, 1, 9)))
    size = len(content) if chance.random() < 0.9 else chance.choice((1, 2**31, 2**32 - 1))
    varint = schemas.encoded_varint
    return varint(len(numbers)) + b"".join(
        varint(each) + varint(size) + content for each in numbers
    )


def _size(size: int, form: str, *, flexible: bool) -> bytes:
    """Encode the size of a string or an array; -1 for null."""
    return schemas.encoded_varint(size + 1) if flexible else struct.pack(form, size)


def _value(field: Any, version: int, chance: random.Random, *, flexible: bool) -> bytes:
    is_null = chance.random() < (0.2 if field.nullable_for_version_q(version) else 0.02)
    if field.is_array():
        count = -1 if is_null else chance.choice((0, 1, 1, 1, 2, 5))
        inside, make = field.array_of, body if field.is_struct_array() else _value
        return _size(count, ">i", flexible=flexible) + b"".join(
            make(inside, version, chance, flexible=flexible) for _ in range(count)
        )
    if field.is_struct():
        there = b"" if not field.nullable_for_version_q(version) else b"\xff" if is_null else b"\1"
        return there + (
            b"" if is_null and there else body(field, version, chance, flexible=flexible)
        )
    kind = field._type_str
    if kind in ("string", "bytes", "records"):
        is_text = kind == "string"
        octets = (
            chance.choice(TEXTS) if is_text else chance.randbytes(chance.choice((0, 1, 20, 200)))
        )
        size = _size(-1 if is_null else len(octets), ">h" if is_text else ">i", flexible=flexible)
        return size if is_null else size + octets
    if kind == "uuid":
        return chance.randbytes(16)
    if kind in _FORMATS_LATER:
        return struct.pack(">" + _FORMATS_LATER[kind], chance.choice((0, 1)))
    form = ">" + _FORMATS[kind]
    number = chance.choice(SOON if field.name.endswith("_ms") else NUMBERS)
    bits = struct.calcsize(form) * 8
    number &= (1 << bits) - 1
    if kind != "uint16" and number >> (bits - 1):
        number -= 1 << bits
    return struct.pack(form, number)


def well_formed(chance: random.Random) -> bytes:
    """Return a request of any kind and version, with random content."""
    api = chance.choice([*Api])
    version = chance.choice(APIS[api].versions if api in APIS else API_VERSIONS)
    flexible = schemas.is_flexible(api, version)
    head = struct.pack(">hhih", api, version, chance.getrandbits(31), 2) + b"me"
    content = body(schemas._REQUESTS[api]._struct, version, chance, flexible=flexible)
    return head + (tags(chance) if flexible else b"") + content


def _changed(chance: random.Random) -> Sent:
    request = bytearray(well_formed(chance))
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(request))
        change = chance.choice((0, 0xFF, 0x80, chance.getrandbits(8)))
        request[at] = change
    return Sent(framed(bytes(request)), False)


def _shortened(chance: random.Random) -> Sent:
    request = well_formed(chance)
    return Sent(framed(request[: chance.randrange(1, len(request) + 1)]), False)


def _lengthened(chance: random.Random) -> Sent:
    request = bytearray(well_formed(chance))
    at = chance.randrange(len(request))
    size = chance.choice((0, 1, 2**15 - 1, 2**31 - 1, -1, -2))
    form = ">i" if abs(size) > 2**15 else ">h"
    request[at : at + struct.calcsize(form)] = struct.pack(form, size)
    return Sent(framed(bytes(request) + chance.randbytes(chance.choice((0, 50, 3_000)))), False)


def _noise(chance: random.Random) -> Sent:
    return Sent(framed(chance.randbytes(chance.choice((1, 4, 10, 40, 400)))), False)


def _cut(chance: random.Random) -> Sent:
    whole = framed(well_formed(chance))
    return Sent(whole[: chance.randrange(len(whole))], True)


def _wrong_size(chance: random.Random) -> Sent:
    size = chance.choice((0, -1, -(2**31), 2**31 - 1, 100 << 20, (100 << 20) + 1, 1 << 20))
    return Sent(struct.pack(">i", size) + chance.randbytes(chance.choice((0, 10, 1_000))), True)


def _as_it_is(chance: random.Random) -> Sent:
    return Sent(framed(well_formed(chance)), False)


KINDS: Final[tuple[Callable[[random.Random], Sent], ...]] = (
    *(_changed, _changed, _shortened, _lengthened, _noise, _cut, _wrong_size, _as_it_is),
)


def malformed(chance: random.Random) -> Sent:
    """Return a request that is invalid in one of many ways, or contains nonsense."""
    return chance.choice(KINDS)(chance)
