"""How an application's thread waits for what a node's threads do.

``threading.Condition`` and ``Event`` do not do there: what a signal's handler raises (Ctrl-C) just
after they have given up their lock, or before they have it again, becomes "release unlocked lock".
Here whoever waits holds no lock, and the wait is a single call into C.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

CHECK_INTERVAL_S: Final = 0.5
"""A loop that ends with an error rings no bell: whoever waits looks at it this often."""


class InterruptibleCondition:
    """Has those who wait look again whether what they wait for is there."""

    def __init__(self) -> None:
        self._waiting: set[SimpleQueue[None]] = set()

    def ring(self) -> None:
        """To be called after each change; from any thread, with any lock."""
        for waiter in tuple(self._waiting):
            if waiter.empty():  # otherwise it looks again anyway
                waiter.put(None)

    def wait_until(
        self,
        condition: Callable[[], bool],
        timeout_s: float | None,
        check: Callable[[], None] | None = None,
    ) -> bool:
        """Waits, holding no lock, until ``condition()`` or for ``timeout_s`` (None: for ever).

        ``check`` raises when nothing will change any more.  False when the time is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiter: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting.add(waiter)
            while not condition():
                remaining_s = None
                if check is not None:
                    check()
                    remaining_s = CHECK_INTERVAL_S
                if deadline is not None:
                    until_s = deadline - time.monotonic()
                    remaining_s = until_s if remaining_s is None else min(remaining_s, until_s)
                    if remaining_s <= 0:
                        return False
                with contextlib.suppress(Empty):
                    waiter.get(timeout=remaining_s)
            return True
        finally:
            self._waiting.discard(waiter)


class InterruptibleEvent:
    """An event: set once, and waited for."""

    def __init__(self) -> None:
        self._bell = InterruptibleCondition()
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set

    def set(self) -> None:
        """Lets all go on who wait, now and later."""
        self._is_set = True
        self._bell.ring()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for it, for ever with None; whether it is set."""
        return self._bell.wait_until(self.is_set, timeout_s)
