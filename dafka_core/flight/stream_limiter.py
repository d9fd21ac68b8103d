"""How much may go on at one time: a client that wants more is refused, and asks another store."""

from __future__ import annotations

import queue

from dafka_core.closing import Closing
from dafka_core.flight.flight_errors import BusyError


class StreamLimiter:
    """Permits for ``count`` streams of one kind.  Thread-safe."""

    def __init__(self, what: str, count: int) -> None:
        self.count = count
        self._what = what
        # Not a semaphore: the garbage collection may close a permit in a thread that is about to
        # take another one.  This queue can be put to even then.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    @property
    def free(self) -> int:
        """How many permits are left."""
        return self._free.qsize()

    def take(self) -> StreamPermit:
        """A permit, if there is one.

        Raises:
            BusyError: there is none.
        """
        try:
            self._free.get_nowait()
        except queue.Empty:
            raise BusyError(
                f"the store serves {self.count} {self._what} already, as many as it may at one "
                "time; ask another store, or later"
            ) from None
        return StreamPermit(self._free)


class StreamPermit(Closing):
    """A permit; it is given back by ``close``, or when nothing refers to it.

    gRPC may drop a stream that it has never asked for anything: no ``finally`` of a generator
    runs then.
    """

    def __init__(self, free: queue.SimpleQueue[None]) -> None:
        self._free: queue.SimpleQueue[None] | None = free

    def close(self) -> None:
        """Gives the permit back; a second call does nothing."""
        free, self._free = self._free, None
        if free is not None:
            free.put(None)

    __del__ = close
