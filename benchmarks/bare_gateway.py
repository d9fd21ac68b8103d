"""The least that a gateway for Kafka's clients does: a store's, which has no log to write to.

It answers as the store's does, checks and decodes what producers send, and then only writes values
to a file, which it syncs once for all that waits.  What a gateway in Python reaches that
acknowledges nothing before it is on disk cannot be more.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import IO

from benchmarks.mesh import up
from dafka_core.cli import main
from dafka_core.model.log_entries import Notes
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import RecordBatch
from dafka_core.nodes import store
from dafka_core.nodes.append_queue import AppendQueue


@contextlib.contextmanager
def serving(partitions: int) -> Iterator[str]:
    """A gateway in a process of its own, with a tower and a store; gives its address."""
    flags = ("--kafka", "127.0.0.1:0", "--num-partitions", str(partitions))
    with (
        tempfile.TemporaryDirectory(prefix="dafka-bench-") as directory,
        up(Path(directory), flags, "benchmarks.bare_gateway") as (_, ready),
    ):
        yield str(ready["kafka"])


class BareQueue(AppendQueue):
    """Has the values of records on disk, and nothing else of them."""

    @cached_property
    def _file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(buffering=0)

    def put_all(self, batches: Sequence[tuple[RecordBatch, Notes]]) -> list[Future[int]]:
        """The same, unless the batches are Dafka's own, as the list of a topic's partitions is."""
        if any(batch.tp.topic.startswith(INTERNAL) for batch, _ in batches):
            return super().put_all(batches)
        os.writev(self._file.fileno(), [batch.values.columns()[1] for batch, _ in batches])
        os.fdatasync(self._file.fileno())
        done = [Future[int]() for _ in batches]
        for each in done:
            each.set_result(0)
        return done


if __name__ == "__main__":
    store.AppendQueue = BareQueue  # type: ignore[attr-defined]
    main()
