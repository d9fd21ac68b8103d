"""Shared parts of the rows: how much to measure, and prepared stores."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Side, compared, in_turns
from benchmarks.page_cache import kept
from dafka_core import EmbeddedCluster
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_core.storage.storage_errors import DATA_FILE

SIZES_BYTES = (100, 1_000)  # sizes of values, by default
FULL_RECORDS = 10_000_000  # records of the first row; the other rows' sizes are in proportion
APPEND_BLOCKS = 4  # blocks appended and synced at a time: 64 MB in memory, with few syncs

TOPIC = "bench"


Content = Callable[[Values], Values]  # makes records' contents of values


def bare(values: Values) -> Values:
    """Return the values."""
    return values


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark's size and directory.

    ``records`` is what the first row reads; fewer make all rows smaller. Unless ``warm``, nothing
    runs before it is measured: fast, and no measurement.
    """

    pairs: int
    records: int
    sizes_bytes: tuple[int, ...]
    directory: Path
    warm: bool = True

    def part(self, full: int, least: int = 1) -> int:
        """Scale ``full``, which is for ``FULL_RECORDS``."""
        return max(full * self.records // FULL_RECORDS, least)

    def in_turns(
        self, name: str, sides: Mapping[str, Side], *, warm_ups: int = 0, rest_s: float = 0
    ) -> dict[str, list[float]]:
        """Measure sides in turns; return a list of results by side."""
        warm_ups *= self.warm
        return in_turns(name, sides, self.pairs, warm_ups=warm_ups, rest_s=rest_s)

    def compare(
        self, name: str, ours: Side, reference: Side, unit: str, goal: float, *, warm_ups: int = 0
    ) -> Figure:
        """Measure two sides in turns, and make their figure."""
        sides = {"ours": ours, "reference": reference}
        found = self.in_turns(name, sides, warm_ups=warm_ups)
        return compared(name, found["ours"], found["reference"], unit, goal)

    @contextlib.contextmanager
    def backlog(self, size_bytes: int) -> Iterator[EmbeddedCluster]:
        """Yield a cluster whose store has topic ``TOPIC``: two partitions, ``records`` in all.

        The records are written once for all rows.
        """
        directory = self.directory / f"backlog-{size_bytes}"
        with filled(directory, self.records, size_bytes, partitions=2) as cluster:
            yield cluster


@contextlib.contextmanager
def prepared(pairs: int, records: int, sizes_bytes: tuple[int, ...], warm: bool) -> Iterator[Bench]:
    """Yield a bench with its own directory, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="dafka-bench-") as directory:
        yield Bench(pairs, records, sizes_bytes, Path(directory), warm)


@contextlib.contextmanager
def filled(
    directory: Path,
    records: int,
    size_bytes: int,
    *,
    partitions: int = 1,
    content: Content = bare,
    keys: bool = False,
) -> Iterator[EmbeddedCluster]:
    """Yield a cluster whose store has ``records`` of topic ``TOPIC``; they stay on disk.

    And in memory, as their references do. ``content`` makes records of values.
    """
    store = directory / "store-0"
    if not store.exists():
        fill(store, records, size_bytes, partitions, content)
    with EmbeddedCluster(directory=directory, keys=keys) as cluster, kept(store / DATA_FILE):
        yield cluster


def fill(
    directory: Path, records: int, size_bytes: int, partitions: int, content: Content = bare
) -> None:
    """Write a store's log in whole blocks, before the store starts."""
    most = APPEND_BLOCKS * min(MAX_BLOCK_RECORDS, MAX_BLOCK_BYTES // size_bytes)
    ends = np.arange(0, (most + 1) * size_bytes, size_bytes, dtype=np.int64)
    data = np.random.default_rng(size_bytes).bytes(most * size_bytes)
    values = content(Values.from_columns(ends, data))
    pending: list[RecordBatch] = []
    pending_count = 0
    with Log(directory) as log:
        for part in range(partitions):
            partition = uuid.uuid4().hex.upper()
            end = records * (part + 1) // partitions - records * part // partitions
            for start in range(0, end, most):
                count = min(most, end - start)
                pending.append(RecordBatch(TopicPartition(TOPIC, partition), start, values[:count]))
                pending_count += count
                if pending_count >= most:
                    log.append(pending)
                    pending, pending_count = [], 0
        log.append(pending)


@contextlib.contextmanager
def empty(*, keys: bool = False) -> Iterator[EmbeddedCluster]:
    """Yield an empty cluster, removed afterwards.

    The disk's work for the removal is done on return, so that it is part of no measurement.
    """
    with EmbeddedCluster(keys=keys) as cluster:
        yield cluster
    os.sync()
