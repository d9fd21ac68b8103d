"""The envelope: one content that holds a record's key, headers and nullable value.

A record of Dafka is one opaque content.  A record without a key and headers and with a value has
the value itself as its content, so that plain and C consumers see it; any other record's content is
an envelope (docs/wire.md):

    magic       4 bytes, ``MAGIC``: no text in UTF-8 begins with them
    version     1 byte, 1
    flags       1 byte: ``HAS_KEY``, ``HAS_VALUE``; the others are 0
    size        varint: the size of the lengths in bytes, ``MAX_LENGTHS_BYTES`` at most
    lengths     varints: the key's and the value's, if it has them; then of each header its name's,
                and its value's plus one, or 0 if that is null
    bytes       all of these, in the same order, and nothing else

A varint has 7 bits in each byte, the lowest first; all bytes but the last have the highest bit set.
It is the shortest one of its number, and has at most five bytes.  A value alone is in an envelope
only if it begins with the magic.  So each record has exactly one encoding, and a content that is no
valid envelope is a value.  ``envelope_columns`` opens and closes the envelopes of whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAGIC: Final = b"\xc1DFK"
VERSION: Final = 1
HAS_KEY: Final = 1
HAS_VALUE: Final = 2
LENGTHS_AT: Final = len(MAGIC) + 2

# The largest number in a varint of two bytes: it bounds the cost of opening one record, and still
# allows thousands of headers.
MAX_LENGTHS_BYTES: Final = (1 << 14) - 1

MAX_VARINT_BYTES: Final = 5  # lengths of up to 32 GiB; a record has less than 2
AUTO: Final = "auto"
NONE: Final = "none"
ENVELOPE: Final = (AUTO, NONE)
"""Values of option ``envelope``: open and close envelopes, or leave contents unchanged."""

ENVELOPE_MEANING: Final = (
    "`auto` writes and opens envelopes, with keys, headers and null values (docs/wire.md); `none` "
    "leaves contents unchanged, as values"
)

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]


def closed(value: bytes | None, key: bytes | None = None, headers: Sequence[Header] = ()) -> bytes:
    """Encode the content of one record; raise ValueError if its headers are invalid or too many."""
    if value is not None and key is None and not headers and not value.startswith(MAGIC):
        return value
    parts = [part for part in (key, value) if part is not None]
    lengths = list(map(len, parts))
    for name, content in headers:
        encoded = name.encode()
        parts += (encoded, content or b"")
        lengths += (len(encoded), 0 if content is None else len(content) + 1)
    packed = b"".join(map(_varint, lengths))
    check_lengths(len(packed))
    flags = HAS_KEY * (key is not None) + HAS_VALUE * (value is not None)
    return b"".join((MAGIC, bytes((VERSION, flags)), _varint(len(packed)), packed, *parts))


def check_lengths(size_bytes: int) -> None:
    """Raise ValueError if the lengths of a record's parts exceed their limit."""
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
