"""What queries of tests do on their way: wait in the middle of a task, change the order, fail."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

PATIENCE_S = 120.0

Change = Callable[[Iterator[Any]], Iterator[Any]]


class InjectedError(Exception):
    """A task's failure that a test wanted."""


def changed(frame: DataFrame, change: Change) -> DataFrame:
    """The frame's rows on their way through ``change``, which may not change the columns."""
    return frame.mapInArrow(change, frame.schema)


class Gate:
    """Holds the tasks of one batch up, before their last rows, until the test opens it."""

    def __init__(self, directory: Path, batch: int | None = None) -> None:
        self._reached = directory / "reached"
        self._opened = directory / "opened"
        self._batch = batch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        for batch in batches:
            if self._batch is None or str(self._batch) == batch_id:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                self._reached.touch()
                wait_for(self._opened.exists)
                yield batch.slice(half)
            else:
                yield batch

    def wait_reached(self) -> None:
        """Returns when a task is held up."""
        wait_for(self._reached.exists)

    def open(self) -> None:
        """Lets all tasks go on."""
        self._opened.touch()


def shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in another order each time."""
    for batch in batches:
        order = list(range(batch.num_rows))
        random.shuffle(order)
        yield batch.take(pa.array(order, pa.int64()))


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, and a task's first attempts fail somewhere; each attempt's rows are in turn."""
    task = TaskContext.get()
    assert task is not None
    left = random.randrange(2000) if task.attemptNumber() < 2 else None
    for batch in shuffled(batches):
        for start in range(0, batch.num_rows, 100):
            if left is not None and left <= start:
                raise InjectedError
            yield batch.slice(start, 100)
    if left is not None:
        raise InjectedError


def wait_for(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Returns when it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.02)
