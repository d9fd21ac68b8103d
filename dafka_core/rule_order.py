"""Which of several rules for topics never counts, as the first that fits a topic does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

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
