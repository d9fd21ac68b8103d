"""A node's threads, and waiting for them in an application's thread.

``threading.Condition`` and ``threading.Event`` are unsuitable: if a signal's handler raises
(Ctrl-C) just after they have released their lock, or before they hold it again, they raise "release
unlocked lock" instead.  Here a waiting thread holds no lock, and waits in one C call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec, TypeVar
from weakref import WeakMethod

LONGEST_S: Final = 1e6  # duration of one wait before the next one: the system accepts no infinity

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
        self._waiting: set[SimpleQueue[None] | _AsyncWaiter] = set()

    def notify(self) -> None:
        """Wake all waiting threads after a change, from any thread, with any locks held."""
        for waiter in tuple(self._waiting):
            if waiter.empty():  # otherwise its thread is about to check anyway
                waiter.put(None)

    def wait_until(self, condition: Callable[[], T], timeout_s: float | None) -> T:
        """Wait until ``condition()`` is true, at most ``timeout_s`` seconds (None: for ever).

        Returns the last result of ``condition``.  An error of ``condition`` ends the wait.
        """
        started_s = time.monotonic()
        waiter: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting.add(waiter)
            while True:
                found = condition()
                remaining_s = timeout_s
                if timeout_s is not None:
                    remaining_s = max(started_s + timeout_s - time.monotonic(), 0.0)
                    remaining_s = min(remaining_s, LONGEST_S)
                if found or remaining_s == 0:
                    return found
                with contextlib.suppress(Empty):
                    waiter.get(timeout=remaining_s)
        finally:
            self._waiting.discard(waiter)

    async def wait_until_async(self, condition: Callable[[], T]) -> T:
        """Wait until ``condition()`` is true, without blocking the event loop.

        Other tasks run first, also if it is true at once: it may be so repeatedly.
        """
        waiter = _AsyncWaiter()
        try:
            self._waiting.add(waiter)
            await waiter.give_way()
            while not (found := condition()):
                await waiter.get()
            return found
        finally:
            self._waiting.discard(waiter)


class _AsyncWaiter:
    """A coroutine's substitute for a queue of one."""

    def __init__(self) -> None:
        # Applications without coroutines need not load it.
        import asyncio  # noqa: PLC0415

        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.give_way = partial(asyncio.sleep, 0)

    def empty(self) -> bool:
        return not self._woken.is_set()

    def put(self, _: None) -> None:
        # A coroutine dropped when its event loop was closed waits no more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    async def get(self) -> None:
        await self._woken.wait()
        self._woken.clear()


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
        """Wait for the thread's end; return True if it has ended; in the thread itself False."""
        if self._thread is threading.current_thread():
            return False
        return self._changed.wait_until(lambda: self._ended, timeout_s)

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._ended = True
            self._changed.notify()
