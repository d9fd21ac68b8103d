"""Requests that no Kafka client sends, generated from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.api_versions import VERSIONS
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


def body(of: Any, version: int, chance: random.Random) -> bytes:
    """Encode a structure by its schema, with random values."""
    return b"".join(_value(each, version, chance) for each in of.untagged_fields(version))


def _value(field: Any, version: int, chance: random.Random) -> bytes:
    is_null = chance.random() < (0.2 if field.nullable_for_version_q(version) else 0.02)
    if field.is_array():
        count = -1 if is_null else chance.choice((0, 1, 1, 1, 2, 5))
        inside = field.array_of
        return struct.pack(">i", count) + b"".join(
            body(inside, version, chance)
            if field.is_struct_array()
            else _value(inside, version, chance)
            for _ in range(count)
        )
    kind = field._type_str
    if kind == "string":
        text = chance.choice(TEXTS)
        return struct.pack(">h", -1) if is_null else struct.pack(">h", len(text)) + text
    if kind in ("bytes", "records"):
        octets = chance.randbytes(chance.choice((0, 1, 20, 200)))
        return struct.pack(">i", -1) if is_null else struct.pack(">i", len(octets)) + octets
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
    version = chance.choice(APIS[api].versions if api in APIS else VERSIONS)
    head = struct.pack(">hhih", api, version, chance.getrandbits(31), 2) + b"me"
    if schemas.is_flexible(api, version):
        return head + chance.choice((b"\0", b"\1\0\1x")) + chance.randbytes(chance.choice((0, 9)))
    return head + body(schemas._REQUESTS[api]._struct, version, chance)


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
