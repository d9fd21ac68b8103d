"""Dafka's latencies while its stores are away or busy."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks import processes
from benchmarks.peers.measures import Result, Rounds, Taken, paced
from benchmarks.peers.systems import Server
from dafka_core import EmbeddedCluster

BEGIN_S: Final = 3.0  # undisturbed time at first

AWAY_S: Final = 5.0


class Situation(NamedTuple):
    """Stores, the producer's ``acks``, and what happens to the stores during a measurement."""

    name: str
    stores: int
    acks: int = 1
    meanwhile: Callable[[EmbeddedCluster], None] | None = None
    settings: Mapping[str, str] = MappingProxyType({})  # of the stores, as environment variables


def pause(cluster: EmbeddedCluster) -> None:
    """Pause a store."""
    time.sleep(BEGIN_S)
    with cluster.paused_store(1):
        time.sleep(AWAY_S)


def kill(cluster: EmbeddedCluster) -> None:
    """Kill a store, and start it again."""
    time.sleep(BEGIN_S)
    cluster.kill_store(1)
    time.sleep(AWAY_S)
    cluster.start_store(1)


SITUATIONS: Final = (
    Situation("one store", 1),
    Situation("two stores", 2),
    Situation("two stores, acks=2", 2, 2),
    Situation("one of two stores paused for 5 s", 2, 1, pause),
    Situation("one of two stores paused for 5 s, acks=2", 2, 2, pause),
    Situation("one of two stores killed for 5 s", 2, 1, kill),
    Situation("one of two stores killed for 5 s, acks=2", 2, 2, kill),
    Situation(
        "merges, compression and retention",
        1,
        settings={
            "DAFKA_RETAIN": "*=4MiB",
            "DAFKA_COMPRESS": "*=zstd",
            "DAFKA_COMPRESS_AFTER_S": "1",
        },
    ),
)


def measure(
    sizes: Sequence[int], rates: Sequence[float], seconds: float, rounds: int
) -> Iterator[Result]:
    """Measure each situation at each rate, with new stores each time."""
    for size_bytes in sizes:
        measured = Rounds(size_bytes, 1)
        for _ in range(rounds):
            for situation in SITUATIONS:
                for per_second in rates:
                    one = _measured(situation, per_second, seconds, size_bytes)
                    row = f"latency at {per_second:,.0f}/s, {situation.name}"
                    measured.add(row, "dafka", int(per_second * seconds), one)
        yield from measured.results()


def _measured(situation: Situation, per_second: float, seconds: float, size_bytes: int) -> Taken:
    meanwhile = situation.meanwhile
    with (
        _environment(situation.settings),
        tempfile.TemporaryDirectory(prefix="dafka-bench-", ignore_cleanup_errors=True) as made,
        EmbeddedCluster(situation.stores, made) as cluster,
    ):
        server = Server(cluster.tower, processes.stores(), Path(made))
        return paced(
            "dafka",
            server,
            per_second,
            seconds,
            size_bytes,
            acks=situation.acks,
            meanwhile=None if meanwhile is None else lambda: meanwhile(cluster),
        )


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
