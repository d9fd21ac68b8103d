"""Waiting for a condition: to the moment it holds, and not beyond the time that is given."""

import time
from itertools import count

import pytest

from dafka_core.testing import wait_until


def test_it_looks_again_until_the_condition_holds() -> None:
    looks = count(1)
    wait_until(lambda: next(looks) == 4)
    assert next(looks) == 5


def test_it_looks_once_though_there_is_no_time() -> None:
    wait_until(lambda: ["anything that is true"], timeout_s=0)


def test_it_fails_in_time_and_says_what_did_not_happen() -> None:
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"^the tower to end: not within 0\.05 s$"):
        wait_until(list, "the tower to end", timeout_s=0.05)
    assert 0.05 <= time.monotonic() - begun < 5
    with pytest.raises(AssertionError, match=r"^the condition: not within 0 s$"):
        wait_until(lambda: None, timeout_s=0)


def test_an_error_of_the_condition_goes_on() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0)
