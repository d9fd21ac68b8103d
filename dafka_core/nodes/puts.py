"""Records put straight into a store by their writers, until they are on disk."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from dafka_core.errors import ClosedError, DafkaError, OffsetConflictError
from dafka_core.nodes.mesh import Mesh
from dafka_core.protocol.storing import StoreRole
from dafka_core.records import Run
from dafka_core.storage import Log

MAX_PUT_BYTES: Final = 64 << 20
"""Values of all writers together on their way to the disk; further ones wait.  Enough for the disk
to have the next group when it has written one."""

WAIT_STEP_S: Final = 1.0
"""How often a wait looks whether the store has stopped."""


class Puts:
    """Hands runs to the store's loop, and tells their writers when they are on disk.

    Thread-safe; ``stored`` and ``fail`` are the store's.
    """

    def __init__(self, mesh: Mesh, role: StoreRole, log: Log) -> None:
        self._mesh = mesh
        self._role = role
        self._log = log
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, str], deque[tuple[int, Future[int]]]] = {}
        self._under_way: dict[Future[int], int] = {}
        self._size_bytes = 0
        self._failure: BaseException | None = None

    def put(self, run: Run) -> Future[int]:
        """Appends a run that begins exactly where its partition ends.

        Waits for room.  The future gives the partition's end when the run is on disk, synced; it
        fails with OffsetConflictError where the run does not begin at the end, and with
        StoreError, NodeFailedError or ClosedError when the store has ended.
        """
        promise: Future[int] = Future()
        size_bytes = run.values.size_bytes
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or self._size_bytes == 0
                    or self._size_bytes + size_bytes <= MAX_PUT_BYTES
                )
            )
            if self._failure is not None:
                promise.set_exception(self._failure)
                return promise
            self._under_way[promise] = size_bytes
            self._size_bytes += size_bytes

        def take(now: float) -> None:
            self._take(now, run, promise)

        try:
            self._mesh.call(take)
        except DafkaError as error:
            if self._ended(promise):
                promise.set_exception(error)
        return promise

    def end(self, topic: str, partition: str) -> int:
        """The partition's end on disk."""
        return self._log.end(topic, partition)

    def wait(self, topic: str, partition: str, end: int, timeout_s: float) -> int:
        """Waits until the partition reaches ``end`` on disk, whoever sends the records.

        Returns where it ends, which is less when ``timeout_s`` seconds have passed.

        Raises:
            DafkaError: the store has ended.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                found = self._log.end(topic, partition)
                left_s = deadline - time.monotonic()
                if found >= end or left_s <= 0:
                    return found
                self._changed.wait(min(left_s, WAIT_STEP_S))

    def stored(self, runs: Iterable[Run]) -> None:
        """The runs are on disk (loop's thread)."""
        done: list[tuple[int, Future[int]]] = []
        with self._changed:
            for run in runs:
                waiting = self._waiting.get((run.topic, run.partition))
                while waiting and waiting[0][0] <= run.end:
                    done.append(waiting.popleft())
                if waiting is not None and not waiting:
                    del self._waiting[run.topic, run.partition]
            self._changed.notify_all()  # for those who wait for what nobody put
        for end, promise in done:
            if self._ended(promise):
                promise.set_result(end)

    def fail(self, error: BaseException | None = None) -> None:
        """The store has ended; nothing more comes to the disk."""
        with self._changed:
            failure = self._failure = self._failure or error or ClosedError("store")
            promises = list(self._under_way)
            self._waiting.clear()
        for promise in promises:
            if self._ended(promise):
                promise.set_exception(failure)

    def _take(self, now: float, run: Run, promise: Future[int]) -> None:
        if self._role.host(now, run):
            with self._changed:
                # In the order of their offsets, as the role takes them.
                waiting = self._waiting.setdefault((run.topic, run.partition), deque())
                waiting.append((run.end, promise))
        elif self._ended(promise):
            end = self._role.next_offset(run.topic, run.partition)
            promise.set_exception(OffsetConflictError(run.topic, run.partition, run.offset, end))

    def _ended(self, promise: Future[int]) -> bool:
        """Gives the room of a put back; False if somebody has done so before."""
        with self._changed:
            size_bytes = self._under_way.pop(promise, None)
            self._size_bytes -= size_bytes or 0
            self._changed.notify_all()
        return size_bytes is not None
