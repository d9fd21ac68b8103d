"""Writers of the tests in processes of their own, and what they write."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dafka_core.storage import Chunk, Log, Snapshot
from tests.core.storage import appender

P = appender.PARTITION
ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def child(directory: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    """A process that appends to the log; killed when the test is through with it."""
    command = [sys.executable, "-m", appender.__name__, str(directory), str(seed)]
    with started(command) as process:
        yield process


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process of the tests; killed when the test is through with it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Told(NamedTuple):
    """What an appender says after an append: the partition's end, how many merges there were."""

    end: int
    merged: int


def told(process: subprocess.Popen[str]) -> Told:
    """What the appender says next."""
    assert process.stdout is not None
    return Told(*map(int, process.stdout.readline().split()))


def killed(process: subprocess.Popen[str]) -> list[Told]:
    """What the appender has said until it was killed."""
    process.kill()
    assert process.stdout is not None
    return [Told(*map(int, line.split())) for line in process.stdout if line.endswith("\n")]


def values_of(store: Log, topic: str = "t", partition: str = P) -> list[bytes]:
    """All values that are held."""
    info = store.info(topic, partition)
    assert info is not None
    values: list[bytes] = []
    while info.earliest + len(values) < info.end:
        for chunk in store.read(topic, partition, info.earliest + len(values), info.end):
            assert chunk.offset == info.earliest + len(values)
            values += chunk.values_list()
    return values


def check_chunks(chunks: Iterable[Chunk], start: int, end: int) -> None:
    """Asserts that the chunks are the appender's records from ``start`` to ``end``."""
    offset = start
    for chunk in chunks:
        assert chunk.offset == offset
        assert chunk.values.to_pylist() == [appender.value(n) for n in range(offset, chunk.end)]
        offset = chunk.end
    assert offset == end


def check_snapshot(snapshot: Snapshot) -> int:
    """Asserts that all a snapshot holds is the appender's; how many records."""
    info = snapshot.info("t", P)
    assert info is not None
    check_chunks(snapshot.read("t", P, info.earliest, info.end), info.earliest, info.end)
    return info.end - info.earliest
