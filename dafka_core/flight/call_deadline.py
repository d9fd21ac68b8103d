"""Calls that must make progress: whoever waits too long for a peer is woken with an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

IDLE_S: Final = 5.0
"""Calls follow each other closely or not at all; starting a thread for each would cost more."""


class CallDeadline:
    """One call, in which its thread waits for the peer now and then; a context.

    ``give_up`` runs in another thread when a wait has lasted ``timeout_s``: it must make the wait
    end.  ``expired`` tells afterwards that it did.
    """

    __slots__ = ("_watchdog", "deadline", "expired", "give_up", "timeout_s")

    def __init__(self, watchdog: Watchdog, timeout_s: float, give_up: Callable[[], None]) -> None:
        self._watchdog = watchdog
        self.give_up = give_up
        self.timeout_s = timeout_s
        self.deadline: float | None = None
        self.expired = False

    def limit(self, timeout_s: float) -> None:
        """From the next wait on this is how long one may last."""
        self.timeout_s = timeout_s
        self._watchdog.look()

    def wait(self) -> None:
        """From now on the peer is waited for."""
        self.deadline = time.monotonic() + self.timeout_s

    def go_on(self) -> None:
        """It has answered."""
        self.deadline = None

    def expire(self) -> None:
        """Gives the call up, unless it has got its answer meanwhile (watchdog's thread)."""
        if self.deadline is None:
            return
        self.expired = True
        self.wait()  # gRPC may connect again and wait on
        self.give_up()

    def __enter__(self) -> Self:
        self._watchdog.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.deadline = None
        self._watchdog.remove(self)


class Watchdog:
    """Gives up calls whose deadline is past.  Its thread ends when there are none for a while.

    A call sets its deadline without a lock, since it does so for each batch.  The thread cannot
    miss one all the same: it looks at least once in every call's timeout.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[CallDeadline] = set()
        self._thread: threading.Thread | None = None

    def add(self, call: CallDeadline) -> None:
        """Watches the call."""
        with self._changed:
            self._calls.add(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="dafka-flight-watch", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def look(self) -> None:
        """Looks at all calls now, as one's limit has changed."""
        with self._changed:
            self._changed.notify()

    def remove(self, call: CallDeadline) -> None:
        """Lets go of the call."""
        with self._changed:
            self._calls.discard(call)

    def close(self) -> None:
        """Gives up all calls there are."""
        with self._changed:
            calls = list(self._calls)
        for call in calls:
            call.give_up()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._calls, IDLE_S):
                    self._thread = None
                    return
                now = time.monotonic()
                late = []
                next_look = now + 60
                # A copy: a call that is collected meanwhile is removed by this very thread.
                for call in tuple(self._calls):
                    deadline = call.deadline
                    if deadline is not None and deadline <= now:
                        late.append(call)
                    else:
                        soonest = now + call.timeout_s if deadline is None else deadline
                        next_look = min(next_look, soonest)
                if not late:
                    self._changed.wait(max(next_look - now, 0.001))
                    continue
            for call in late:
                call.expire()
