"""Names of topics and partitions: any bytes (RFC 46), and their printable form.

Inside, a name is text that preserves its bytes: those that are not UTF-8 are surrogates, as with
Python's ``surrogateescape``.  Outside, in output and in user input, it is escaped: printable, and
parsed back to the same name.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that change a screen or a line instead of being visible: control and format
characters, line separators, and surrogates, which represent bytes that are not UTF-8."""

JOINERS: Final = "\u200c\u200d"  # format characters that scripts and emojis are composed with
INTERNAL: Final = "__dafka."
"""Prefix of topics that Dafka's own programs write; no pattern matches them."""

QUERIES_TOPIC: Final = f"{INTERNAL}queries"  # progress of Spark's streaming queries
DELETIONS_TOPIC: Final = f"{INTERNAL}deletions"  # deletions of topics, written by stores
AUDIT_TOPIC: Final = f"{INTERNAL}audit"  # audit records of queries with option ``audit``

NOT_PLAIN: Final = (
    "has control characters, or bytes that are not UTF-8: use another name, or set option {} to "
    "true"
)

_ESCAPED: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
_MISTAKABLE: Final = re.compile(r"\\(?=x[0-9a-fA-F]{2})")


def text_of(octets: bytes) -> str:
    """Decode a name; RFC 46: a topic "can be any byte sequence", so any bytes survive."""
    return octets.decode("utf-8", "surrogateescape")


def octets_of(text: str) -> bytes:
    """Encode a name, the inverse of ``text_of``."""
    return text.encode("utf-8", "surrogateescape")


def escape(name: str) -> str:
    r"""Return a name in printable form: ``\xff`` for byte 255 and all other invisible ones.

    A backslash that would begin such an escape is ``\x5c``; others are unchanged.
    """
    return printable(_MISTAKABLE.sub(r"\\x5c", name) if "\\" in name else name)


def unescape(text: str) -> str:
    """Parse a printable form, the inverse of ``escape``; any byte may be escaped."""
    if "\\x" not in text:
        return text
    return text_of(_ESCAPED.sub(lambda each: bytes((int(each[1], 16),)), octets_of(text)))


def quoted(name: str) -> str:
    """Return a name for use in a sentence."""
    return f"'{escape(name)}'"


def shown_partition(topic: str, partition: str) -> str:
    """Return a partition's name for an error or a log line."""
    return f"topic {quoted(topic)}, partition {escape(partition)}"


def printable(text: str) -> str:
    """Escape invisible characters; backslashes are unchanged."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def is_plain(name: str) -> bool:
    """Return True if every character is visible."""
    return printable(name) == name


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN or character in JOINERS:
        return character
    is_octet = "\udc80" <= character <= "\udcff"
    octets = octets_of(character) if is_octet else character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{each:02x}" for each in octets)
