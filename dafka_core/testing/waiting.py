"""Waiting for a condition instead of for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 30.0
"""A generous timeout: only a failing test waits for it, even on a busy machine."""

POLL_S: Final = 0.01


def wait_until(
    condition: Callable[[], object], what: str = "", timeout_s: float = PATIENCE_S
) -> None:
    """Return when ``condition()`` is true.

    Raises:
        AssertionError: it is false for ``timeout_s`` seconds; the text names ``what``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what or 'the condition'}: not within {timeout_s:g} s")
        time.sleep(POLL_S)
