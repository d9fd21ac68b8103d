"""Rules for topics, by pattern: which records a store keeps, and how it compresses cold blocks.

A rule is ``PATTERN=LIMITS``: a shell pattern of topics' names, and an age, a size, or both::

    flights*=7d,10GiB       a week, unless that is more than 10 GiB
    audit=forever           nothing goes

The first rule whose pattern fits a topic counts; what no rule fits is kept for ever.  Internal
topics are only fitted by a rule that names them in full.
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
    """A rule for the topics that a shell pattern fits."""

    @property
    def pattern(self) -> str:
        """The pattern."""

    def fits(self, topic: str) -> bool:
        """Whether the rule is about a topic."""


def check_each_counts(rules: Sequence[Rule]) -> None:
    """Sees that no rule is behind one that fits all of its topics.

    Raises:
        ValueError: one never counts.
    """
    for number, later in enumerate(rules):
        if earlier := next((each for each in rules[:number] if _covers(each, later)), None):
            why = f"{str(earlier)!r} before it fits the same topics; put it first or leave it out"
            raise ValueError(f"have {str(later)!r}, which never counts: {why}")


def _covers(earlier: Rule, later: Rule) -> bool:
    """Whether one fits all topics that the other fits; False, too, where it is not plain to see."""
    if _WILD.isdisjoint(later.pattern):
        return earlier.fits(later.pattern)
    is_plain = _WILD.isdisjoint(earlier.pattern.replace("*", "")) and "[" not in later.pattern
    return earlier.pattern == later.pattern or (is_plain and earlier.fits(later.pattern))


RULES: Final = "PATTERN=AGE|SIZE|AGE,SIZE"
"""How users write rules."""

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
    """How long, and how much, is kept of the topics that a pattern fits; None: no limit."""

    pattern: str
    age_s: float | None = None
    size_bytes: int | None = None

    def fits(self, topic: str) -> bool:
        """Whether the rule is about a topic."""
        if topic.startswith(INTERNAL):
            return topic == self.pattern
        return fnmatchcase(topic, self.pattern)

    def __str__(self) -> str:
        limits = [] if self.age_s is None else [_shown(self.age_s, _AGES)]
        limits += [] if self.size_bytes is None else [_shown(self.size_bytes, _SIZES)]
        return f"{_SPACES.sub(_escaped, escape(self.pattern))}={','.join(limits) or FOREVER}"


def parse_rules(value: Any) -> tuple[RetentionRule, ...]:
    """Rules from their text, several by spaces or semicolons or in a list.

    Raises:
        ValueError: one is none.
    """
    if isinstance(value, RetentionRule):
        return (value,)
    if isinstance(value, str):
        return tuple(parse_rule(word) for word in re.split(r"[;\s]+", value) if word)
    if not isinstance(value, Iterable):
        raise ValueError(f"must be rules, as {RULES}")
    return tuple(rule for each in value for rule in parse_rules(each))


def checked_rules(value: Any) -> tuple[RetentionRule, ...]:
    """As ``parse_rules``, for what users write; rules that are kept already are taken as they are.

    Raises:
        ValueError: one is none, or never counts.
    """
    rules = parse_rules(value)
    check_each_counts(rules)
    return rules


def parse_rule(text: str) -> RetentionRule:
    """A rule from its text.

    Raises:
        ValueError: it is none.
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
    """The first rule that is about a topic; None when nothing of it goes."""
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


# Compression rules: with which codec a store compresses the cold blocks of which topics.
#
# A rule is ``PATTERN=CODEC``: a shell pattern of topics' names, and ``zstd``, ``lz4`` or ``none``.
# The first rule whose pattern fits a topic counts; what no rule fits is not compressed.


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
        return tuple(_parse_codec(word) for word in re.split(r"[;\s]+", value) if word)
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


def _parse_codec(text: str) -> CompressionRule:
    pattern, equals, codec = text.rpartition("=")
    if not equals or not pattern or codec not in CODECS:
        raise ValueError(f"must be {COMPRESSION}, as 'flights*=zstd'; got {escape(text)!r}")
    return CompressionRule(unescape(pattern), codec)
