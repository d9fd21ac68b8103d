"""How an application's thread waits for what a node's loop does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

CHECK_INTERVAL_S: Final = 0.5
"""A loop that ends with an error notifies nobody: whoever waits looks at it this often."""


def wait_for(
    changed: threading.Condition,
    condition: Callable[[], bool],
    timeout_s: float | None,
    check: Callable[[], None],
) -> None:
    """Waits, with ``changed`` held, until ``condition()`` or for ``timeout_s`` (None: for ever).

    ``check`` raises when the loop has ended and nothing will change any more.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not condition():
        check()
        left_s = CHECK_INTERVAL_S
        if deadline is not None:
            left_s = min(left_s, deadline - time.monotonic())
        if left_s <= 0:
            return
        changed.wait(left_s)
