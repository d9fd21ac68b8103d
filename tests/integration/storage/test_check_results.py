"""What looks at a log have found is added up."""

from __future__ import annotations

from dafka_core.storage.check_results import BLOCK, Checked, Damage


def test_results_of_two_looks_are_added() -> None:
    one, other = (Damage(BLOCK, "t", "p", offset, "why") for offset in (1, 2))
    both = Checked(1, 2, 3, 4, (one,), 3, 5).plus(Checked(10, 20, 30, 40, (other,), 4, 50))
    assert both == Checked(11, 22, 33, 44, (one, other), 4, 55)
