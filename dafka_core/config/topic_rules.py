"""Rules for topics: retention of their records, and compression of their cold blocks.

A rule begins with a shell pattern of topics' names.  The first rule with a matching pattern
applies; a topic without a rule is kept for ever, and not compressed::

    flights*=7d,10GiB       retention: an age, a size, or both
    audit=forever           no limits; internal topics match only a rule with their full name
    flights*=zstd           compression: zstd, lz4 or none
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Self, TypeVar

from dafka_core.model.names import INTERNAL, escape, unescape
from dafka_core.model.positions import UNITS_US, parse_duration_us

RULES: Final = "PATTERN=AGE|SIZE|AGE,SIZE"  # syntax of retention rules, for users
FOREVER: Final = "forever"
MAX_AGE_S: Final = 10**9
_MAX_BYTES: Final = 2**63 - 1

NONE: Final = "none"
CODECS: Final = ("zstd", "lz4", NONE)
"""zstd reduces texts to about half of lz4's size, in about three times its time."""

COMPRESSION: Final = f"PATTERN={'|'.join(CODECS)}"  # syntax of compression rules, for users
_AGES: Final = {unit: UNITS_US[unit] // 10**6 for unit in ("s", "m", "h", "d", "w")}
_SIZES: Final = {
    "B": 1,
    **{f"{unit}B": 1000**n for n, unit in enumerate("KMGT", 1)},
    **{f"{unit}iB": 1024**n for n, unit in enumerate("KMGT", 1)},
}
_SIZES_BY_NAME: Final = {unit.lower(): size for unit, size in _SIZES.items()}
_SIZE: Final = re.compile(r"(?a)(\d{1,19}(?:\.\d{1,6})?) ?([a-z]{1,3})")
_SEPARATORS: Final = re.compile(r"[;\s]+")


class RetentionRule(NamedTuple):
    """Age and size limits of the topics that match a pattern; None: no limit."""

    pattern: str
    age_s: float | None = None
    size_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a rule; raise ValueError if it is invalid."""
        pattern, _, limits = text.rpartition("=")
        if not pattern:
            raise ValueError(f"must be {RULES}, as 'flights*=7d,10GiB'; got {escape(text)!r}")
        words = [] if limits == FOREVER else limits.split(",")
        found: dict[str, Any] = dict(map(_limit, words))
        if len(found) < len(words):
            raise ValueError(f"must have one age and one size at most; got {limits!r}")
        return cls(unescape(pattern), **found)

    def fits(self, topic: str) -> bool:
        """Return True if the rule applies to a topic."""
        if topic.startswith(INTERNAL):
            return topic == self.pattern
        return fnmatchcase(topic, self.pattern)

    def __str__(self) -> str:
        limits = [] if self.age_s is None else [_shown(self.age_s, _AGES)]
        limits += [] if self.size_bytes is None else [_shown(self.size_bytes, _SIZES)]
        return f"{_shown_pattern(self.pattern)}={','.join(limits) or FOREVER}"


class CompressionRule(NamedTuple):
    """The codec of the topics that match a pattern."""

    pattern: str
    codec: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a rule; raise ValueError if it is invalid."""
        pattern, _, codec = text.rpartition("=")
        if not pattern or codec not in CODECS:
            raise ValueError(f"must be {COMPRESSION}, as 'flights*=zstd'; got {escape(text)!r}")
        return cls(unescape(pattern), codec)

    def fits(self, topic: str) -> bool:
        """Return True if the rule applies to a topic."""
        return fnmatchcase(topic, self.pattern)

    def __str__(self) -> str:
        return f"{_shown_pattern(self.pattern)}={self.codec}"


_R = TypeVar("_R", RetentionRule, CompressionRule)


def parse_rules(value: Any) -> tuple[RetentionRule, ...]:
    """Parse retention rules, separated by spaces or semicolons or in a list."""
    return _parse(value, RetentionRule, RULES)


def parse_compression(value: Any) -> tuple[CompressionRule, ...]:
    """Parse compression rules, as ``parse_rules``."""
    return _parse(value, CompressionRule, COMPRESSION)


def rule_of(topic: str, rules: Iterable[_R]) -> _R | None:
    """Return the first rule for a topic, or None."""
    return next((rule for rule in rules if rule.fits(topic)), None)


def codec_of(topic: str, rules: Iterable[CompressionRule]) -> str:
    """Return the codec for a topic, or ``none``."""
    rule = rule_of(topic, rules)
    return NONE if rule is None else rule.codec


def _parse(value: Any, kind: type[_R], syntax: str) -> tuple[_R, ...]:
    if isinstance(value, kind):
        return (value,)
    if isinstance(value, str):
        return tuple(kind.parse(word) for word in _SEPARATORS.split(value) if word)
    if not isinstance(value, Iterable):
        raise ValueError(f"must be rules, as {syntax}")
    return tuple(rule for each in value for rule in _parse(each, kind, syntax))


def _limit(word: str) -> tuple[str, float]:
    with suppress(ValueError):  # for ages, M is not m
        if word == word.lower() and 0 < (age_s := parse_duration_us(word) / 10**6) <= MAX_AGE_S:
            return "age_s", age_s
    if (match := _SIZE.fullmatch(word.lower())) and match[2] in _SIZES_BY_NAME:
        size = int(Decimal(match[1]) * _SIZES_BY_NAME[match[2]])
        if 1 <= size <= _MAX_BYTES:
            return "size_bytes", size
    raise ValueError(
        f"must have limits as 90s, 30m, 12h, 7d, 4w, 500MB, 10GiB, or {FOREVER}; got {word!r}"
    )


def _shown_pattern(pattern: str) -> str:
    return _SEPARATORS.sub(
        lambda each: "".join(f"\\x{octet:02x}" for octet in each[0].encode()), escape(pattern)
    )


def _shown(number: float, units: Mapping[str, int]) -> str:
    whole = [unit for unit, each in units.items() if number >= each and number % each == 0]
    if not whole:  # an age, in whole microseconds
        return f"{number:.6f}".rstrip("0") + next(iter(units))
    unit = max(whole, key=units.__getitem__)
    return f"{int(number) // units[unit]}{unit}"
