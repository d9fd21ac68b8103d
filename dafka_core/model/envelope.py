"""The envelope: how a record's key, headers and null value lie in its one content.

A record of Dafka is one content, opaque octets.  That of a record without a key, without headers
and with a value is the value itself, so that plain and C consumers see it; any other record's is an
envelope (docs/envelope.md):

    magic       4 octets, ``MAGIC``: no text in UTF-8 begins so
    version     1 octet, 1
    flags       1 octet: ``HAS_KEY``, ``HAS_VALUE``; the others are 0
    size        varint: how many octets the lengths take, ``MAX_LENGTHS_BYTES`` at most
    lengths     varints: the key's and the value's, if it has them; then of each header its name's,
                and its value's and one, or 0 if that is null
    octets      of all of these, in the same order, and nothing else

A varint has 7 bits in each octet, the lowest first; all octets but the last have the highest bit
set.  It is the shortest one of its number, and has five octets at most.  A value alone is in an
envelope only if it begins with the magic.  So a record has one content, and what does not fit
exactly is no envelope: it is a value.  ``envelope_columns`` opens and
closes the envelopes of whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAGIC: Final = b"\xc1DFK"
VERSION: Final = 1
HAS_KEY: Final = 1
HAS_VALUE: Final = 2
LENGTHS_AT: Final = len(MAGIC) + 2

MAX_LENGTHS_BYTES: Final = (1 << 14) - 1
"""As much as a varint of two octets says.  It bounds what one record costs who opens it; its
headers are thousands all the same."""

MAX_VARINT_BYTES: Final = 5
"""Lengths of up to 32 GiB; a record has less than 2."""

AUTO: Final = "auto"
NONE: Final = "none"
ENVELOPE: Final = (AUTO, NONE)
"""For option ``envelope``: envelopes are opened and closed, or contents left as they are."""

ENVELOPE_MEANING: Final = (
    "`auto`: keys, headers and null values are in envelopes (docs/envelope.md); `none`: contents "
    "stay as they are, and are values"
)

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]


def closed(value: bytes | None, key: bytes | None = None, headers: Sequence[Header] = ()) -> bytes:
    """The content of one record.

    Raises:
        ValueError: a header's name is no text, or there are too many headers.
    """
    if value is not None and key is None and not headers and not value.startswith(MAGIC):
        return value
    parts = [part for part in (key, value) if part is not None]
    lengths = list(map(len, parts))
    for name, of in headers:
        octets = name.encode()
        parts += (octets, of or b"")
        lengths += (len(octets), 0 if of is None else len(of) + 1)
    packed = b"".join(map(_varint, lengths))
    check_lengths(len(packed))
    flags = HAS_KEY * (key is not None) + HAS_VALUE * (value is not None)
    return b"".join((MAGIC, bytes((VERSION, flags)), _varint(len(packed)), packed, *parts))


def check_lengths(size_bytes: int) -> None:
    """Raises ValueError where the lengths of a record's parts take more than they may."""
    if size_bytes > MAX_LENGTHS_BYTES:
        raise ValueError(
            f"too many headers: the lengths of a record's parts take {size_bytes} bytes in its "
            f"envelope, at most {MAX_LENGTHS_BYTES}"
        )


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)
