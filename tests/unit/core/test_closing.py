"""Contexts that end with ``close``."""

from __future__ import annotations

import pytest

from dafka_core.closing import Closing


class Counted(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_leaving_closes() -> None:
    counted = Counted()
    with counted as entered:
        assert entered is counted
        assert counted.closed == 0
    assert counted.closed == 1


def test_an_error_closes_and_goes_on() -> None:
    counted = Counted()
    with pytest.raises(ZeroDivisionError), counted:
        _ = 1 // 0
    assert counted.closed == 1


def test_a_class_without_close_cannot_be_used() -> None:
    class Open(Closing):
        """It says nothing of its end."""

    with pytest.raises(TypeError, match="abstract"):
        Open()  # type: ignore[abstract]
