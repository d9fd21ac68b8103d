"""A node's threads, and waiting for them in an application's thread.

``threading.Condition`` and ``threading.Event`` are unsuitable: if a signal's handler raises
(Ctrl-C) just after they have released their lock, or before they hold it again, they raise "release
unlocked lock" instead.  Here a waiting thread holds no lock, and waits in one C call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

from dafka_core.system.closing import check_process

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T], gone: T) -> Callable[P, T]:
    """Call a bound method without keeping its object alive; return ``gone`` without it."""
    reference = WeakMethod(method)

    def call(*arguments: P.args, **named: P.kwargs) -> T:
        found = reference()
        return gone if found is None else found(*arguments, **named)

    return call


class InterruptibleCondition:
    """Wakes waiting threads, which then check their condition again."""

    def __init__(self) -> None:
        self._waiting: set[Callable[[], None]] = set()  # the functions that wake them

    def notify(self) -> None:
        """Wake all waiting threads after a change, from any thread, with any locks held."""
        for wake in tuple(self._waiting):
            wake()

    def wait_until(self, condition: Callable[[], T], timeout_s: float | None) -> T:
        """Wait until ``condition()`` is true, at most ``timeout_s`` seconds (None: for ever).

        Returns the last result of ``condition``.  An error of ``condition`` ends the wait.
        """
        deadline = inf if timeout_s is None else time.monotonic() + timeout_s
        woken: SimpleQueue[None] = SimpleQueue()

        def wake() -> None:
            if woken.empty():  # otherwise the thread is about to check anyway
                woken.put(None)

        try:
            self._waiting.add(wake)
            while True:
                found = condition()
                remaining_s = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if found or remaining_s <= 0:
                    return found
                with contextlib.suppress(Empty):
                    woken.get(timeout=remaining_s)
        finally:
            self._waiting.discard(wake)

    async def wait_until_async(self, condition: Callable[[], T]) -> T:
        """Wait until ``condition()`` is true, without blocking the event loop.

        Other tasks run first, also if it is true at once: it may be so repeatedly.
        """
        # Applications without coroutines need not load it.
        import asyncio  # noqa: PLC0415

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A coroutine dropped when its event loop was closed waits no more.
            with contextlib.suppress(RuntimeError):
                if not woken.is_set():
                    loop.call_soon_threadsafe(woken.set)

        try:
            self._waiting.add(wake)
            await asyncio.sleep(0)
            while not (found := condition()):
                await woken.wait()
                woken.clear()
            return found
        finally:
            self._waiting.discard(wake)


class NodeThread:
    """A daemon thread that reports its own end.

    ``Thread.join`` is unsuitable: before Python 3.13 an exception that ends the wait (Ctrl-C, a
    signal's handler) makes it consider the thread ended, and the node would be closed under its
    running loop.

    Attributes:
        started: whether it may run: also if an exception has ended the wait for its start.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.started = self._ended = False
        self._run = run
        self._process = os.getpid()
        self._changed = InterruptibleCondition()
        self._thread = threading.Thread(target=self._run_to_end, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; only once."""
        self.started = True
        try:
            self._thread.start()
        except RuntimeError:  # the system has no room for another thread
            self.started = False
            raise

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread's end; return True if it has ended; in the thread itself False.

        Raises ForkedError in a forked child of its process.
        """
        check_process(self._thread.name, self._process)
        if self._thread is threading.current_thread():
            return False
        return self._changed.wait_until(lambda: self._ended, timeout_s)

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._ended = True
            self._changed.notify()
