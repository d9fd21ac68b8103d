"""Functions for ``mapInArrow`` that hold a task, shuffle its rows or make it fail."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from dafka_core.testing import wait_until

PATIENCE_S = 120.0

Change = Callable[[Iterator[Any]], Iterator[Any]]


class InjectedError(Exception):
    """The failure of a task that a test injects."""


def changed(frame: DataFrame, change: Change) -> DataFrame:
    """Apply ``change``, which keeps the columns, to the rows of a frame."""
    return frame.mapInArrow(change, frame.schema)


class Gate:
    """Holds the tasks of one batch before their last rows until the test opens it."""

    def __init__(self, directory: Path, batch: int) -> None:
        self._reached = directory / "reached"
        self._opened = directory / "opened"
        self._batch = str(batch)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if task.getLocalProperty("streaming.sql.batchId") == self._batch:
                self._reached.touch()
                wait_until(self._opened.exists, timeout_s=PATIENCE_S)
            yield batch.slice(half)

    def wait_reached(self) -> None:
        wait_until(self._reached.exists, timeout_s=PATIENCE_S)

    def open(self) -> None:
        self._opened.touch()


def shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Shuffle the rows, differently each time."""
    for batch in batches:
        order = list(range(batch.num_rows))
        random.shuffle(order)
        yield batch.take(pa.array(order, pa.int64()))


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Shuffle the rows, and fail the first two attempts of each task at a random row."""
    task = TaskContext.get()
    assert task is not None
    limit = random.randrange(2000) if task.attemptNumber() < 2 else None
    for batch in shuffled(batches):
        for start in range(0, batch.num_rows, 100):
            if limit is not None and limit <= start:
                raise InjectedError
            yield batch.slice(start, 100)
    if limit is not None:
        raise InjectedError
