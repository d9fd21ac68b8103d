"""How many streams to stores a task has open at a time, however many partitions it writes to."""

from __future__ import annotations

from typing import Final, Protocol

MAX_STREAMS: Final = 4
"""Streams that a task has open: a store takes 32, and other tasks write to it, too."""


class Pausing(Protocol):
    """A publisher with a stream, as ``dafka_spark.sink.transactional_writer.TransactionalWriter`` is one."""

    def pause(self) -> None:
        """Closes its stream, and leaves; the next row opens it again."""


class StreamLimit:
    """The publishers of one task that have a stream to a store open: not too many at a time."""

    def __init__(self) -> None:
        self._open: dict[Pausing, None] = {}

    def enter(self, publisher: Pausing) -> None:
        """Makes room for a stream: the one opened first is closed."""
        while len(self._open) >= MAX_STREAMS:
            next(iter(self._open)).pause()
        self._open[publisher] = None

    def leave(self, publisher: Pausing) -> None:
        """The publisher has closed its own."""
        self._open.pop(publisher, None)
