"""Calls that must make progress: a wait for a peer that lasts too long is ended with an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self

from dafka_core.closing import Closing

IDLE_S: Final = 5.0
"""Calls follow each other closely or not at all; starting a thread for each would cost more."""


class CallDeadline(Closing):
    """One call, in which its thread waits for the peer now and then.

    ``give_up`` runs in another thread when a wait has lasted ``timeout_s``: it must make the wait
    end.  ``expired`` tells afterwards that it did.
    """

    def __init__(self, watchdog: Watchdog, timeout_s: float, give_up: Callable[[], None]) -> None:
        self.give_up = give_up
        self.timeout_s = timeout_s
        self.deadline: float | None = None
        self.expired = False
        self._watchdog = watchdog

    def start(self) -> Self:
        """Has the watchdog watch the call, until ``close``."""
        self._watchdog.add(self)
        return self

    def limit(self, timeout_s: float) -> None:
        """From the next wait on this is how long one may last."""
        self.timeout_s = timeout_s
        self._watchdog.look()

    def wait(self) -> None:
        """From now on the call waits for the peer."""
        self.deadline = time.monotonic() + self.timeout_s

    def go_on(self) -> None:
        """The peer has answered."""
        self.deadline = None

    def expire(self) -> None:
        """Gives the call up, unless it has got its answer meanwhile (watchdog's thread)."""
        if self.deadline is not None:
            self.expired = True
            self.wait()  # gRPC may connect again and wait on
            self.give_up()

    def close(self) -> None:
        """Ends the call."""
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

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

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
        """Looks at all calls now, as the limit of one has changed."""
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
                late, next_look = self._look(time.monotonic())
                if not late:
                    self._changed.wait(max(next_look - time.monotonic(), 0.001))
            for call in late:
                call.expire()

    def _look(self, now: float) -> tuple[list[CallDeadline], float]:
        """The calls whose deadline is past, and when to look again."""
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
        return late, next_look
