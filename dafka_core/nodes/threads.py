"""A node's threads.  An exception of a signal's handler may end a wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dafka_core.nodes.interruptible import InterruptibleCondition


class NodeThread:
    """A daemon thread that says itself when it has ended.

    ``Thread.join`` cannot be used: before Python 3.13 an exception that ends the wait (Ctrl-C, a
    signal's handler) makes it take the thread for ended, and the node would be closed under its
    running loop.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._run = run
        self._ended = False
        self._changed = InterruptibleCondition()
        self._thread = threading.Thread(target=self._run_to_end, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread; only once."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether the thread was ever started."""
        return self._thread.ident is not None

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread's end; True if it has ended.  In the thread itself: False."""
        if self._thread is threading.current_thread():
            return False
        return self._changed.wait_until(lambda: self._ended, timeout_s)

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._ended = True
            self._changed.notify()
