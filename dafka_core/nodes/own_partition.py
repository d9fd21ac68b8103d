"""Appends what a store, or its gateway, notes to a partition of its own: that of its address."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from dafka_core.errors import OffsetConflictError
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.values import Values


class Writable(Protocol):
    """A store, or what has its log and its queue."""

    @property
    def log(self) -> Log:
        """Its log."""

    @property
    def append_queue(self) -> AppendQueue:
        """Its queue."""


def append(
    store: Writable, tp: TopicPartition, contents: Sequence[bytes], *, timeout_s: float
) -> range:
    """Has a store append records of its own; returns their offsets when they are on disk, synced.

    Anybody may write there: then they begin behind that.  Waits, so it is not for the loop.

    Raises:
        OffsetConflictError: others have written there all the time, for ``timeout_s`` seconds.
        InvalidRequestError: a record is larger than a store takes.
        TimeoutError: the disk takes longer.
        DafkaError: the store has ended.
    """
    deadline = time.monotonic() + timeout_s
    values = Values.of(contents)
    while True:
        start = store.log.end(tp)
        put = store.append_queue.put(RecordBatch(tp, start, values))
        try:
            return range(start, put.result(timeout_s))
        except OffsetConflictError:
            if time.monotonic() >= deadline:
                raise
