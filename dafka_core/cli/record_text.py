"""Records as text: values, JSON, or what a format with kcat's letters says."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dafka_core.model.envelope import Headers
from dafka_core.model.names import escape, octets_of
from dafka_core.model.opened_records import opened_lists
from dafka_core.model.records import UNKNOWN_US, Record

if TYPE_CHECKING:
    from dafka_core.model.matched_records import Records

LETTERS: Final[dict[str, tuple[str, Callable[[Record], bytes]]]] = {
    "t": ("topic", lambda each: octets_of(escape(each.topic))),
    "p": ("partition", lambda each: octets_of(escape(each.partition))),
    "o": ("offset", lambda each: b"%d" % each.offset),
    "T": ("timestamp, in milliseconds since 1970 UTC", lambda each: _ms(each.timestamp_us)),
    "k": ("key", lambda each: each.key or b""),
    "v": ("value", lambda each: each.value or b""),
    "s": ("value, as %v", lambda each: each.value or b""),
    "K": ("length of the key; -1 without one", lambda each: _length(each.key)),
    "S": ("length of the value; -1 of null", lambda each: _length(each.value)),
    "h": ("headers, as NAME=VALUE,...", lambda each: _headers(each.headers)),
    "%": ("a percent sign", lambda _: b"%"),
}
"""What stands for what in a format; the letters are kcat's, and v beside them."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PARTS: Final = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|([^%\\]+)", re.DOTALL)


def opened(batch: Records, *, opens: bool = True) -> Iterator[Record]:
    """The records, in order; without ``opens`` their contents are values as they are."""
    values, keys, headers = opened_lists(batch.values, opens=opens)
    times: Any = repeat(None)
    if batch.times is not None:
        stamps = np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist()
        times = (None if each == UNKNOWN_US else each for each in stamps)
    offsets = map(batch.offset_of, range(batch.count))
    place = (repeat(batch.topic), repeat(batch.partition), offsets)
    return map(Record._make, zip(*place, values, keys, headers, times, strict=False))


def lines(batch: Records, *, opens: bool = True) -> bytes:
    """Values, each with a newline behind it; of null it is the newline alone."""
    values, *_ = opened_lists(batch.values, opens=opens)
    return b"\n".join([*(value or b"" for value in values), b""])


def json_lines(batch: Records, *, opens: bool = True) -> bytes:
    """Objects with what is known of each record, one on a line."""
    made = []
    place = {"topic": escape(batch.topic), "partition": escape(batch.partition)}
    for record in opened(batch, opens=opens):
        fields: dict[str, Any] = {**place, "offset": record.offset}
        if record.timestamp is not None:
            fields["timestamp"] = record.timestamp.isoformat()
        if record.key is not None:
            fields |= _shown("key", record.key)
        fields |= _shown("value", record.value)
        if record.headers:
            fields["headers"] = [{"name": n, **_shown("value", of)} for n, of in record.headers]
        made.append(json.dumps(fields) + "\n")
    return "".join(made).encode()


def formatted(text: str) -> Callable[..., bytes]:
    r"""What makes text by a format: ``%t %o %v``; a newline is added if it ends in no escape.

    Raises:
        ValueError: a letter, or an escape, is none.
    """
    parts: list[bytes | Callable[[Record], bytes]] = []
    for match in _PARTS.finditer(text):
        letter, escaped, plain = match.groups()
        if plain is not None:
            parts.append(octets_of(plain))
        elif letter is not None:
            if letter not in LETTERS:
                raise ValueError(
                    f"%{letter} is none of {', '.join(f'%{each}' for each in LETTERS)}"
                )
            parts.append(LETTERS[letter][1])
        elif len(escaped) == 3:
            parts.append(bytes.fromhex(escaped[1:]))
        elif escaped in _ESCAPES:
            parts.append(_ESCAPES[escaped])
        else:
            raise ValueError(rf"\{escaped} is none of \n, \t, \r, \0, \\ and \xff")
    if not re.search(r"\\(x..|.)$", text):
        parts.append(b"\n")

    def made(batch: Records, *, opens: bool = True) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else part(record)
            for record in opened(batch, opens=opens)
            for part in parts
        )

    return made


def _ms(time_us: int | None) -> bytes:
    return b"-1" if time_us is None else b"%d" % (time_us // 1_000)


def _length(octets: bytes | None) -> bytes:
    return b"-1" if octets is None else b"%d" % len(octets)


def _headers(headers: Headers) -> bytes:
    return b",".join(octets_of(name) + b"=" + (value or b"") for name, value in headers)


def _shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Text; or null, and the octets in base64 where they are no text."""
    if octets is None:
        return {name: None}
    try:
        return {name: octets.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(octets).decode()}
