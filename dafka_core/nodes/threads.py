"""A node's threads, which may be waited for by a thread that a signal interrupts."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dafka_core.nodes.interruptible import InterruptibleEvent


class NodeThread:
    """A daemon thread whose end is a flag of its own.

    ``Thread.join`` does not do: interrupted by an exception (Ctrl-C, a signal's handler) it takes
    the thread for ended, before Python 3.13, and the node is closed under its running loop.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._run = run
        self._ended = InterruptibleEvent()
        self._thread = threading.Thread(target=self._run_to_end, name=name, daemon=True)

    def start(self) -> None:
        """Starts it; only once."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._thread.ident is not None

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for its end; True if it has ended.  From the thread itself: False, at once."""
        if self._thread is threading.current_thread():
            return False
        return self._ended.wait(timeout_s)

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._ended.set()
