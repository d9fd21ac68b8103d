"""The floor of a gateway for Kafka's clients: the real gateway, without a log.

It checks and decodes what producers send, and only writes the values to a file, with one sync for
all waiting requests. A gateway in Python that acknowledges synced records can't be faster.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import IO

from benchmarks.mesh import up
from dafka_core.cli import main
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes import store
from dafka_core.nodes.append_queue import Addition, AppendQueue


@contextlib.contextmanager
def serving(partitions: int) -> Iterator[str]:
    """Start the gateway with a tower and a store in its own process; yield its address."""
    flags = ("--kafka", "127.0.0.1:0", "--num-partitions", str(partitions))
    with (
        tempfile.TemporaryDirectory(prefix="dafka-bench-") as directory,
        up(Path(directory), flags, "benchmarks.bare_gateway") as (_, ready),
    ):
        yield str(ready["kafka"])


class BareQueue(AppendQueue):
    """Write and sync records' values only."""

    @cached_property
    def _file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(buffering=0)

    @cached_property
    def _ends(self) -> Counter[TopicPartition]:
        return Counter()

    def put_next(self, additions: Sequence[Addition]) -> list[Future[int]]:
        """Write the values."""
        done = [Future[int]() for _ in additions]
        with self._changed:
            placed = [
                each.place(self._ends[each.tp], 0, future)
                for each, future in zip(additions, done, strict=True)
            ]
            batches = [each for each in placed if isinstance(each, RecordBatch)]
            self._ends.update({each.tp: each.count for each in batches})
        os.writev(self._file.fileno(), [each.values.columns()[1] for each in batches])
        os.fdatasync(self._file.fileno())
        for each in done:
            each.set_result(0)
        return done


if __name__ == "__main__":
    store.AppendQueue = BareQueue  # type: ignore[attr-defined]
    main()
