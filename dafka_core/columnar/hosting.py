"""What the Flight service needs of the store node it serves for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from dafka_core.columnar.places import Place
from dafka_core.records import Run


class Host(Protocol):
    """A store node, from the service's threads."""

    def put(self, run: Run) -> Future[int]:
        """Appends exactly at ``run.offset``, synced; gives the partition's durable end.

        May wait for room.  The future fails with OffsetConflictError when the run does not begin
        at the partition's end.
        """

    def end(self, topic: str, partition: str) -> int:
        """The partition's durable end."""

    def wait(self, topic: str, partition: str, end: int, timeout_s: float) -> int:
        """Waits until the partition is durable up to ``end``, but ``timeout_s`` seconds.

        Returns its durable end, which is less than ``end`` when the time has passed.
        """

    def places(self) -> list[Place]:
        """The stores it knows of, itself included."""
