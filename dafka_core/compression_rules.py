"""Compression rules: with which codec a store compresses the cold blocks of which topics.

A rule is ``PATTERN=CODEC``: a shell pattern of topics' names, and ``zstd``, ``lz4`` or ``none``.
The first rule whose pattern fits a topic counts; what no rule fits is not compressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from dafka_core.names import escape, unescape
from dafka_core.rule_order import check_each_counts

NONE: Final = "none"
CODECS: Final = ("zstd", "lz4", NONE)
"""zstd makes about half as much of a text as lz4, and takes about three times its time."""

COMPRESSION: Final = f"PATTERN={'|'.join(CODECS)}"
"""How users write rules."""


class CompressionRule(NamedTuple):
    """How the topics that a pattern fits are compressed."""

    pattern: str
    codec: str

    def fits(self, topic: str) -> bool:
        """Whether the rule is about a topic."""
        return fnmatchcase(topic, self.pattern)

    def __str__(self) -> str:
        return f"{escape(self.pattern)}={self.codec}"


def parse_compression(value: Any) -> tuple[CompressionRule, ...]:
    """Rules from their text, several by spaces or semicolons or in a list.

    Raises:
        ValueError: one is none.
    """
    if isinstance(value, CompressionRule):
        return (value,)
    if isinstance(value, str):
        return tuple(_parsed(word) for word in re.split(r"[;\s]+", value) if word)
    if not isinstance(value, Iterable):
        raise ValueError(f"must be rules, as {COMPRESSION}")
    return tuple(rule for each in value for rule in parse_compression(each))


def checked_compression(value: Any) -> tuple[CompressionRule, ...]:
    """As ``parse_compression``.

    Raises:
        ValueError: one is none, or never counts.
    """
    rules = parse_compression(value)
    check_each_counts(rules)
    return rules


def codec_of(topic: str, rules: Iterable[CompressionRule]) -> str:
    """The codec for a topic, or ``none``."""
    return next((rule.codec for rule in rules if rule.fits(topic)), NONE)


def _parsed(text: str) -> CompressionRule:
    pattern, equals, codec = text.rpartition("=")
    if not equals or not pattern or codec not in CODECS:
        raise ValueError(f"must be {COMPRESSION}, as 'flights*=zstd'; got {escape(text)!r}")
    return CompressionRule(unescape(pattern), codec)
