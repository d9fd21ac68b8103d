"""Rules for topics, by pattern: retention of records, and compression of cold blocks.

A rule is ``PATTERN=LIMITS``: a shell pattern of topics' names, and an age, a size, or both::

    flights*=7d,10GiB       a week, unless that is more than 10 GiB
    audit=forever           unlimited

The first rule with a matching pattern applies; a topic without a rule is kept for ever.  Internal
topics match only a rule with their full name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Protocol

from dafka_core.model.names import INTERNAL, escape, unescape
from dafka_core.model.positions import UNITS_US

_WILD: Final = frozenset("*?[")


class Rule(Protocol):
    """A rule for the topics that match a shell pattern."""

    @property
    def pattern(self) -> str:
        """Return the pattern."""

    def fits(self, topic: str) -> bool:
        """Return True if the rule applies to a topic."""


def check_each_counts(rules: Sequence[Rule]) -> None:
    """Check that no rule follows one that matches all of its topics.

    Raises:
        ValueError: a rule never applies.
    """
    for number, later in enumerate(rules):
        if earlier := next((each for each in rules[:number] if _covers(each, later)), None):
            why = f"{str(earlier)!r} before it fits the same topics; put it first or leave it out"
            raise ValueError(f"have {str(later)!r}, which never counts: {why}")


def _covers(earlier: Rule, later: Rule) -> bool:
    """Return True if one pattern certainly matches all topics of the other."""
    if _WILD.isdisjoint(later.pattern):
        return earlier.fits(later.pattern)
    is_plain = _WILD.isdisjoint(earlier.pattern.replace("*", "")) and "[" not in later.pattern
    return earlier.pattern == later.pattern or (is_plain and earlier.fits(later.pattern))


RULES: Final = "PATTERN=AGE|SIZE|AGE,SIZE"
"""Syntax of rules, for users."""

FOREVER: Final = "forever"

_AGES: Final = {unit: UNITS_US[unit] // 10**6 for unit in ("s", "m", "h", "d", "w")}
_SIZES: Final = {
    "B": 1,
    **{f"{unit}B": 1000**n for n, unit in enumerate("KMGT", 1)},
    **{f"{unit}iB": 1024**n for n, unit in enumerate("KMGT", 1)},
}
_LIMIT: Final = re.compile(r"(?a)(?P<number>\d{1,15}(?:\.\d{1,6})?) ?(?P<unit>[A-Za-z]{1,3})")
_SPACES: Final = re.compile(r"[;\s]")
MAX_AGE_S: Final = 10**9
_MAX_BYTES: Final = 2**63 - 1


class RetentionRule(NamedTuple):
    """Age and size limits of the topics that match a pattern; None: no limit."""

    pattern: str
    age_s: float | None = None
    size_bytes: int | None = None

    def fits(self, topic: str) -> bool:
        """Return True if the rule applies to a topic."""
        if topic.startswith(INTERNAL):
            return topic == self.pattern
        return fnmatchcase(topic, self.pattern)

    def __str__(self) -> str:
        limits = [] if self.age_s is None else [_shown(self.age_s, _AGES)]
        limits += [] if self.size_bytes is None else [_shown(self.size_bytes, _SIZES)]
        return f"{_SPACES.sub(_escaped, escape(self.pattern))}={','.join(limits) or FOREVER}"


def parse_rules(value: Any) -> tuple[RetentionRule, ...]:
    """Parse rules, separated by spaces or semicolons or in a list.

    Raises:
        ValueError: a rule is invalid.
    """
    if isinstance(value, RetentionRule):
        return (value,)
    if isinstance(value, str):
        return tuple(parse_rule(word) for word in re.split(r"[;\s]+", value) if word)
    if not isinstance(value, Iterable):
        raise ValueError(f"must be rules, as {RULES}")
    return tuple(rule for each in value for rule in parse_rules(each))


def checked_rules(value: Any) -> tuple[RetentionRule, ...]:
    """Parse a user's rules; rules already in force are not checked again.

    Raises:
        ValueError: a rule is invalid, or never applies.
    """
    rules = parse_rules(value)
    check_each_counts(rules)
    return rules


def parse_rule(text: str) -> RetentionRule:
    """Parse a rule.

    Raises:
        ValueError: it is invalid.
    """
    pattern, equals, limits = text.rpartition("=")
    if not equals or not pattern:
        raise ValueError(f"must be {RULES}, as 'flights*=7d,10GiB'; got {escape(text)!r}")
    if limits == FOREVER:
        return RetentionRule(unescape(pattern))
    words = limits.split(",")
    found = dict(_parsed(word) for word in words)
    if len(found) < len(words):
        raise ValueError(f"must have one age and one size at most; got {limits!r}")
    size = found.get("size_bytes")
    return RetentionRule(unescape(pattern), found.get("age_s"), None if size is None else int(size))


def rule_of(topic: str, rules: Iterable[RetentionRule]) -> RetentionRule | None:
    """Return the first rule for a topic; None if its records are kept for ever."""
    return next((rule for rule in rules if rule.fits(topic)), None)


def _parsed(word: str) -> tuple[str, float]:
    match = _LIMIT.fullmatch(word)
    units = {unit.lower(): each for unit, each in _SIZES.items()}
    if match is not None:
        number, unit = float(match["number"]), match["unit"]
        if unit in _AGES and 0 < (age_s := number * _AGES[unit]) <= MAX_AGE_S:
            return "age_s", age_s
        if unit.lower() in units and 1 <= (size := number * units[unit.lower()]) <= _MAX_BYTES:
            return "size_bytes", size
    raise ValueError(
        f"must have limits as 90s, 30m, 12h, 7d, 4w, 500MB, 10GiB, or {FOREVER}; got {word!r}"
    )


def _escaped(space: re.Match[str]) -> str:
    return "".join(f"\\x{octet:02x}" for octet in space[0].encode())


def _shown(number: float, units: Mapping[str, int]) -> str:
    whole = [unit for unit, each in units.items() if number >= each and number % each == 0]
    unit = max(whole, key=units.__getitem__, default=next(iter(units)))
    return f"{number / units[unit]:.15g}{unit}"


# Compression rules: the codec of the cold blocks of topics, by pattern.
#
# A rule is ``PATTERN=CODEC``: a shell pattern of topics' names, and ``zstd``, ``lz4`` or ``none``.
# The first rule with a matching pattern applies; a topic without a rule is not compressed.


NONE: Final = "none"
CODECS: Final = ("zstd", "lz4", NONE)
"""zstd reduces texts to about half of lz4's size, in about three times its time."""

COMPRESSION: Final = f"PATTERN={'|'.join(CODECS)}"
"""Syntax of rules, for users."""


class CompressionRule(NamedTuple):
    """The codec of the topics that match a pattern."""

    pattern: str
    codec: str

    def fits(self, topic: str) -> bool:
        """Return True if the rule applies to a topic."""
        return fnmatchcase(topic, self.pattern)

    def __str__(self) -> str:
        return f"{escape(self.pattern)}={self.codec}"


def parse_compression(value: Any) -> tuple[CompressionRule, ...]:
    """Parse rules, separated by spaces or semicolons or in a list.

    Raises:
        ValueError: a rule is invalid.
    """
    if isinstance(value, CompressionRule):
        return (value,)
    if isinstance(value, str):
        return tuple(_parse_codec(word) for word in re.split(r"[;\s]+", value) if word)
    if not isinstance(value, Iterable):
        raise ValueError(f"must be rules, as {COMPRESSION}")
    return tuple(rule for each in value for rule in parse_compression(each))


def checked_compression(value: Any) -> tuple[CompressionRule, ...]:
    """Parse a user's rules, as ``parse_compression``.

    Raises:
        ValueError: a rule is invalid, or never applies.
    """
    rules = parse_compression(value)
    check_each_counts(rules)
    return rules


def codec_of(topic: str, rules: Iterable[CompressionRule]) -> str:
    """Return the codec for a topic, or ``none``."""
    return next((rule.codec for rule in rules if rule.fits(topic)), NONE)


def _parse_codec(text: str) -> CompressionRule:
    pattern, equals, codec = text.rpartition("=")
    if not equals or not pattern or codec not in CODECS:
        raise ValueError(f"must be {COMPRESSION}, as 'flights*=zstd'; got {escape(text)!r}")
    return CompressionRule(unescape(pattern), codec)
