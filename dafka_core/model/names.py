"""Names of topics and partitions: any octets (RFC 46), and how people and programs see them.

Inside, a name is text that has its octets exactly; those that are not UTF-8 are surrogates, as
Python's ``surrogateescape`` has them.  Outside, in what is printed and in what users write, it is
escaped: printable, and the same name when it is read.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what does something to a screen or a line in place of being seen: control
and format characters, separators of lines, and surrogates, which are octets that are not UTF-8."""

JOINERS: Final = "\u200c\u200d"
"""Of the format characters those of which scripts and emojis are made."""

INTERNAL: Final = "__dafka."
"""How the names of topics begin that Dafka's own programs write to: no pattern matches them."""

QUERIES_TOPIC: Final = f"{INTERNAL}queries"
"""Where Spark's streaming queries report how far they are (``query_progress``)."""

DELETIONS_TOPIC: Final = f"{INTERNAL}deletions"
"""Where stores note which topics were deleted (``dafka_core/model/log_entries.py``)."""

AUDIT_TOPIC: Final = f"{INTERNAL}audit"
"""Where streaming queries with option ``audit`` note what they have written (``audit_record``)."""

NOT_PLAIN: Final = (
    "has control characters, or octets that are not UTF-8: take another name, or set option {} to "
    "true"
)

_ESCAPED: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
_MISTAKABLE: Final = re.compile(r"\\(?=x[0-9a-fA-F]{2})")


def text_of(octets: bytes) -> str:
    """Octets as text; RFC 46: a topic "can be any byte sequence", so any octets survive."""
    return octets.decode("utf-8", "surrogateescape")


def octets_of(text: str) -> bytes:
    """The inverse of ``text_of``."""
    return text.encode("utf-8", "surrogateescape")


def escape(name: str) -> str:
    r"""A name as it is shown: ``\xff`` for octet 255, and so for all that cannot be seen.

    A backslash that would begin such an escape is ``\x5c``; others are as they are.
    """
    return printable(_MISTAKABLE.sub(r"\\x5c", name) if "\\" in name else name)


def unescape(text: str) -> str:
    """The name that ``text`` shows, the inverse of ``escape``; any octet may be written so.

    Raises:
        ValueError: it has surrogates that are no octets.
    """
    if "\\x" not in text:
        return text
    return text_of(_ESCAPED.sub(lambda each: bytes((int(each[1], 16),)), octets_of(text)))


def quoted(name: str) -> str:
    """A name within a sentence."""
    return f"'{escape(name)}'"


def shown_partition(topic: str, partition: str) -> str:
    """Return a partition's name for an error or a log line."""
    return f"topic {quoted(topic)}, partition {escape(partition)}"


def printable(text: str) -> str:
    """Text without what cannot be seen, which is escaped; nothing is done to backslashes."""
    if text.isprintable():
        return text
    return "".join(_escaped(each) if _is_hidden(each) else each for each in text)


def is_plain(name: str) -> bool:
    """Whether all of a name can be seen."""
    return printable(name) == name


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in HIDDEN and character not in JOINERS


def _escaped(character: str) -> str:
    is_octet = "\udc80" <= character <= "\udcff"
    octets = octets_of(character) if is_octet else character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{each:02x}" for each in octets)
