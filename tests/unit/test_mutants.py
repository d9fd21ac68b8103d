"""Each known defect still has its place in the code, so that ``make mutants`` can put it back."""

import pytest

from tests.mutants.__main__ import DEFECTS, ROOT, Defect, mutated, read


@pytest.mark.parametrize("defect", read(DEFECTS), ids=lambda each: each.name)
def test_a_known_defect_has_its_place(defect: Defect) -> None:
    assert mutated(defect, ROOT)
    paths = [each.partition("::")[0] for each in defect.tests.split() if each[0] != "-"]
    assert all((ROOT / each).exists() for each in paths if each.startswith("tests/"))
