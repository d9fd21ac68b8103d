"""A gate: any number of threads inside together, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RWLock:
    """Readers pass ``shared``; whoever moves the ground under them passes ``exclusive``.

    A thread inside must not enter again.  Nobody enters while an exclusive one waits, so readers
    cannot keep it out.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Waits while a thread is inside alone, or waits to be."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._closed and self._inside == 0:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Waits until every other thread is outside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
