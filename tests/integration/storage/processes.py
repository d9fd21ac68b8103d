"""Processes that append to a log, and checks of their records."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb

from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.open_environment import Opened
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.tables import Tables
from tests.integration.storage import appender

TP = appender.TP
P = TP.partition
ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def child(directory: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process that appends to the log, and kill it at the end."""
    command = [sys.executable, "-m", appender.__name__, str(directory), str(seed)]
    with started(command) as process:
        yield process


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process, and kill it at the end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def on_disk(directory: Path) -> list[PartitionInfo]:
    """Return the partitions in a directory that a store in another process may have open.

    Raises:
        lmdb.Error: the file does not exist yet.
    """
    with lmdb.open(str(directory), readonly=True, max_dbs=3, map_size=1 << 40, create=False) as env:
        tables = [env.open_db(name, create=False) for name in (b"meta", b"partitions", b"blocks")]
        with env.begin(buffers=True) as txn:
            return Tables(Opened(directory, env, set(), *tables), txn).infos(None)


class Told(NamedTuple):
    """An appender's report after an append: the partition's end, and the count of merges."""

    end: int
    merged: int


def told(process: subprocess.Popen[str]) -> Told:
    """Return the appender's next report."""
    assert process.stdout is not None
    return Told(*map(int, process.stdout.readline().split()))


def killed(process: subprocess.Popen[str]) -> list[Told]:
    """Kill the appender, and return its remaining reports."""
    process.kill()
    assert process.stdout is not None
    return [Told(*map(int, line.split())) for line in process.stdout if line.endswith("\n")]


def values_of(store: Log, tp: TopicPartition = TP) -> list[bytes]:
    """Return all available values."""
    info = store.info(tp)
    assert info is not None
    values: list[bytes] = []
    while info.earliest + len(values) < info.end:
        for batch in store.read(tp, info.earliest + len(values), info.end):
            assert batch.offset == info.earliest + len(values)
            values += batch.values
    return values


def put(store: Log, *counts: int, topic: str = "t") -> None:
    """Append batches of the appender's records, with these counts, at the partition's end."""
    for count in counts:
        tp = TopicPartition(topic, P)
        end = store.end(tp)
        values = [appender.value(offset) for offset in range(end, end + count)]
        store.append([RecordBatch.of(tp, end, values)])


def check_batches(batches: Iterable[RecordBatch], start: int, end: int) -> None:
    """Check that these are the appender's records from ``start`` to ``end``."""
    offset = start
    for batch in batches:
        assert batch.offset == offset
        expected = [appender.value(n) for n in range(offset, batch.end)]
        assert batch.values.to_arrow().to_pylist() == expected
        offset = batch.end
    assert offset == end


def check_snapshot(snapshot: Snapshot) -> int:
    """Check that a snapshot has the appender's records; return their count."""
    info = snapshot.info(TP)
    assert info is not None
    check_batches(snapshot.read(TP, info.earliest, info.end), info.earliest, info.end)
    return info.end - info.earliest
