"""The display of findings."""

from __future__ import annotations

from dafka_core.ops.findings import Severity, ok, problem, problems, warning


def test_a_finding_is_a_sentence_and_what_to_do() -> None:
    found = [ok("tower", "it answers"), warning("clocks", "they differ", "set them")]
    assert [str(each) for each in found] == ["it answers", "they differ; set them"]
    assert [each.severity.value for each in found] == ["ok", "warning"]


def test_problems_alone_are_problems() -> None:
    wrong = problem("stores", "there is none", "start one")
    assert problems([ok("a", "b"), warning("a", "b", "c"), wrong]) == [wrong]
    assert wrong.severity is Severity.PROBLEM
    assert not wrong.lasts
    assert problem("a", "b", "c", lasts=True).lasts
