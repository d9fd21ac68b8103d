"""How much may go on at one time: beyond it a request is refused, and asks another store."""

from __future__ import annotations

import threading

from dafka_core.columnar.failures import BusyError


class Slots:
    """A number of places for streams of one kind."""

    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        self._free = threading.BoundedSemaphore(count)

    def take(self) -> Slot:
        """A place, if there is one.

        Raises:
            BusyError: there is none.
        """
        if not self._free.acquire(blocking=False):
            raise BusyError(
                f"the store serves {self._count} {self._what} already, as many as it may at one "
                "time; ask another store, or later"
            )
        return Slot(self._free)


class Slot:
    """A place taken, until ``release`` or until nobody refers to it.

    gRPC may drop a stream that it has never asked for anything: no ``finally`` of a generator
    runs then.
    """

    __slots__ = ("_free",)

    def __init__(self, free: threading.BoundedSemaphore) -> None:
        self._free: threading.BoundedSemaphore | None = free

    def release(self) -> None:
        """Gives the place back; a second call does nothing."""
        free, self._free = self._free, None
        if free is not None:
            free.release()

    __del__ = release
