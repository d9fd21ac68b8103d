"""What a diagnosis finds: how bad it is, a sentence, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """How bad something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        about: which check has found it: ``tower``, ``stores``, ``topic``...
        lasts: waiting does not help, somebody has to do something.
    """

    severity: Severity
    about: str
    sentence: str
    remedy: str = ""
    lasts: bool = False

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence


def ok(about: str, sentence: str) -> Finding:
    """What is as it should be."""
    return Finding(Severity.OK, about, sentence)


def warning(about: str, sentence: str, remedy: str) -> Finding:
    """What works, and not as well as it could, or not for everything."""
    return Finding(Severity.WARNING, about, sentence, remedy)


def problem(about: str, sentence: str, remedy: str, *, lasts: bool = False) -> Finding:
    """What keeps queries from working."""
    return Finding(Severity.PROBLEM, about, sentence, remedy, lasts)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are problems."""
    return [each for each in findings if each.severity is Severity.PROBLEM]
