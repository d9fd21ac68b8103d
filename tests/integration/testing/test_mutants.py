"""Known defects are put into a copy of the tree, and only a test that fails finds one."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import Defect, MovedError, check, mutated

RIGHT = "def added(a, b):\n    return a + b\n"
TEST = "from sums import added\n\ndef test_a_sum():\n    assert added(2, 3) == 5\n"
PROFILE = "from hypothesis import settings\nsettings.register_profile('mutants')\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of one module, and its test."""
    for name, text in (("sums.py", RIGHT), ("test_sums.py", TEST), ("conftest.py", PROFILE)):
        (tmp_path / name).write_text(text)
    return tmp_path


def defect(find: str, put: str) -> Defect:
    return Defect(f"{find} becomes {put}", "sums.py", find, put, "Sums are wrong.", "test_sums.py")


def test_a_defect_is_found_if_a_test_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, right, missing = (
        defect("a + b", "a - b"),
        defect("a + b", "b + a"),
        defect("added", "sums"),  # the test cannot be imported
    )
    assert check([wrong, right, missing], tree, jobs=1) == 2
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][0] == "found"
    assert lines[0][-1] == "test_sums.py::test_a_sum"
    assert [" ".join(line[:2]) for line in lines].count("NOT FOUND") == 2
    assert lines[-1] == ["1", "of", "3", "defects", "found"]
    assert (tree / "sums.py").read_text() == RIGHT


def test_tests_must_pass_without_a_defect(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "sums.py").write_text(RIGHT.replace("+", "*"))
    assert check([defect("a * b", "a - b")], tree, jobs=1) == 1
    assert "FAILS WITHOUT A DEFECT" in capsys.readouterr().out


@pytest.mark.parametrize("find", ["a % b", "a", "a + b\n\n"])
def test_a_place_that_has_moved_is_reported(tree: Path, find: str) -> None:
    with pytest.raises(MovedError, match=r"its place has moved: sums\.py"):
        mutated(defect(find, ""), tree)
