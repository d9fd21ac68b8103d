"""How much of what a producer has published is not acknowledged, in bytes."""

from __future__ import annotations

from collections import deque


class Unacked:
    """What was published, in order, until it is acknowledged.  Its caller holds a lock.

    Attributes:
        size_bytes: the contents of all of it.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._published: deque[tuple[int, int]] = deque()  # (end, bytes)

    def add(self, end: int, size_bytes: int) -> None:
        """Records were published, up to this offset."""
        self._published.append((end, size_bytes))
        self.size_bytes += size_bytes

    def drop_until(self, offset: int) -> None:
        """All before this offset is acknowledged."""
        while self._published and self._published[0][0] <= offset:
            self.size_bytes -= self._published.popleft()[1]
