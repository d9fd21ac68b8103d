"""How much may go on at one time: beyond it a request is refused, and asks another store."""

from __future__ import annotations

import queue

from dafka_core.flight.flight_errors import BusyError


class StreamLimiter:
    """A number of places for streams of one kind."""

    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        # Not a semaphore: a slot may be collected, and so given back, by a thread that is about
        # to take or to give back another one.  This queue can be put to even then.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    @property
    def free(self) -> int:
        """How many places there are."""
        return self._free.qsize()

    def take(self) -> StreamPermit:
        """A place, if there is one.

        Raises:
            BusyError: there is none.
        """
        try:
            self._free.get_nowait()
        except queue.Empty:
            raise BusyError(
                f"the store serves {self._count} {self._what} already, as many as it may at one "
                "time; ask another store, or later"
            ) from None
        return StreamPermit(self._free)


class StreamPermit:
    """A place taken, until ``release`` or until nobody refers to it.

    gRPC may drop a stream that it has never asked for anything: no ``finally`` of a generator
    runs then.
    """

    __slots__ = ("_free",)

    def __init__(self, free: queue.SimpleQueue[None]) -> None:
        self._free: queue.SimpleQueue[None] | None = free

    def release(self) -> None:
        """Gives the place back; a second call does nothing."""
        free, self._free = self._free, None
        if free is not None:
            free.put(None)

    __del__ = release
