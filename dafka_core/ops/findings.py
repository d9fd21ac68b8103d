"""Findings of a diagnosis: severity, sentence and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

LIFE: Final = "life"
"""The subject of findings that a node has ended or hangs: only these are cured by a restart."""


class Severity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of a check."""

    severity: Severity
    about: str  # the subject, such as ``tower`` or ``stores``
    sentence: str
    remedy: str = ""
    lasts: bool = False  # waiting does not help

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence


def ok(about: str, sentence: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(Severity.OK, about, sentence)


def warning(about: str, sentence: str, remedy: str) -> Finding:
    """Return a finding of degraded or limited operation."""
    return Finding(Severity.WARNING, about, sentence, remedy)


def problem(about: str, sentence: str, remedy: str, *, lasts: bool = False) -> Finding:
    """Return a finding that prevents queries."""
    return Finding(Severity.PROBLEM, about, sentence, remedy, lasts)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are problems."""
    return [each for each in findings if each.severity is Severity.PROBLEM]
