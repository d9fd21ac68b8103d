"""Calls that must make progress: a wait for a peer that lasts too long is ended with an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self

from dafka_core.closing import Closing
from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.flight.flight_errors import translated

LOOK_S: Final = 0.05
"""How often the watchdog looks: so much later than asked for a wait may end."""

IDLE_S: Final = 5.0
"""How long the watchdog's thread outlives the last call.  Calls follow each other closely or not at
all; starting a thread for each would cost more."""


class CallDeadline(Closing):
    """One call, in which its thread waits for the peer now and then.

    Attributes:
        timeout_s: how long one wait may last.
        expired: whether a wait has lasted longer: then the watchdog's thread has called
            ``give_up``, which must make the wait end.
    """

    def __init__(self, watchdog: Watchdog, timeout_s: float, give_up: Callable[[], None]) -> None:
        self.give_up = give_up
        self.timeout_s = timeout_s
        self.expired = False
        self._deadline: float | None = None
        self._watchdog = watchdog

    def start(self) -> Self:
        """Has the watchdog watch the call, until ``close``."""
        self._watchdog.add(self)
        return self

    def wait(self) -> None:
        """From now on the call waits for the peer."""
        # Without a lock, as a call does so for each batch; the watchdog sees it when it looks next.
        self._deadline = time.monotonic() + self.timeout_s

    def go_on(self) -> None:
        """The peer has answered."""
        self._deadline = None

    def check(self, now: float) -> None:
        """Gives the call up if it waits for too long (watchdog's thread)."""
        deadline = self._deadline
        if deadline is not None and deadline <= now:
            self.expired = True
            self.wait()  # gRPC may connect again and wait on
            self.give_up()

    def close(self) -> None:
        """Ends the call."""
        self.go_on()
        self._watchdog.remove(self)

    def translated(self, error: BaseException, store: str) -> DafkaError:
        """What an error that has ended the call means to the caller of ``store``."""
        if self.expired:
            return StoreUnreachableError(store, f"no progress for {self.timeout_s:g} s")
        return translated(error, store)


class Watchdog:
    """Gives up calls whose deadline is past.  Its thread ends when there are none for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[CallDeadline] = set()
        self._thread: threading.Thread | None = None

    def add(self, call: CallDeadline) -> None:
        """Watches the call."""
        with self._changed:
            self._calls.add(call)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="dafka-flight-watch", daemon=True
                )
                self._thread.start()

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
                calls = list(self._calls)
            for call in calls:
                call.check(time.monotonic())
            time.sleep(LOOK_S)
