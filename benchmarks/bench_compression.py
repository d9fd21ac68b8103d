"""Row 17: compressed blocks: their size, how fast they are read, and the cost for ingest.

Each codec is compared with no compression, for text values and for noise.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks.figures import Figure, Side, compared, tell
from benchmarks.harness import TOPIC, Bench
from dafka_core.config.topic_rules import CODECS, NONE, CompressionRule
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.testing import PATIENCE_S, StoreDouble

FULL_RECORDS: Final = 2_000_000

BATCH: Final = 50_000

TP: Final = TopicPartition(TOPIC, "A" * 32)

GOALS: Final = {"local read": 0.15, "Flight read": 0.6, "ingest": 0.75}
"""Goals as shares of the rates without compression. A local read mainly opens blocks."""

TEXT: Final = (
    '{"icao24": "%06x", "callsign": "DLH%d", "time": %d, "lat": %.4f, "lon": %.4f, "on_ground": %s}'
)


def texts() -> Values:
    """Return a batch of aircraft positions, as JSON of about 100 bytes."""
    chance = np.random.default_rng(17)
    return Values.of(
        [
            TEXT.encode() % (plane, plane % 997, 1_700_000_000 + number // 100, lat, lon, b"false")
            for number, (plane, lat, lon) in enumerate(
                zip(
                    chance.integers(0, 5_000, BATCH).tolist(),
                    chance.uniform(45, 55, BATCH).tolist(),
                    chance.uniform(5, 15, BATCH).tolist(),
                    strict=True,
                )
            )
        ]
    )


def noise() -> Values:
    """Return a batch of incompressible values of 100 bytes."""
    ends = np.arange(0, (BATCH + 1) * 100, 100, dtype=np.int64)
    return Values.from_columns(ends, np.random.default_rng(18).bytes(BATCH * 100))


def run(bench: Bench) -> Iterator[Figure]:
    """Measure size, reads and ingest of both kinds of values, with each codec and without."""
    batches = bench.part(FULL_RECORDS // BATCH, least=2)
    for kind, values in (("text", texts()), ("noise", noise())):
        with contextlib.ExitStack() as stack, LocalLogs() as logs:
            stores = {
                codec: stack.enter_context(_filled(bench.directory, codec, values, batches))
                for codec in CODECS
            }
            sizes = {codec: _size_mb(store.log) for codec, store in stores.items()}
            ways: dict[str, dict[str, Side]] = {
                "local read": {c: _local(logs, store) for c, store in stores.items()},
                "Flight read": {c: _flight(store) for c, store in stores.items()},
                "ingest": {c: _ingest(bench.directory, c, values, batches) for c in CODECS},
            }
            for codec in CODECS[:-1]:
                name = f"blocks of {kind}, {codec}"
                yield compared(name, [sizes[codec]], [sizes[NONE]], "MB", goal=1.0)
            for way, sides in ways.items():
                name = f"{way} of {kind}"
                rates = bench.in_turns(name, sides, warm_ups=1)
                for codec in CODECS[:-1]:
                    ours, whole = rates[codec], rates[NONE]
                    yield compared(f"{name}, {codec}", ours, whole, "M rows/s", GOALS[way])


@contextlib.contextmanager
def _filled(directory: Path, codec: str, values: Values, batches: int) -> Iterator[StoreDouble]:
    """Yield a store with records, all compressed."""
    with (
        TemporaryDirectory(dir=directory) as path,
        StoreDouble(Path(path), socket=True) as store,
    ):
        for number in range(batches):
            store.log.append([RecordBatch(TP, number * BATCH, values)])
        compressor = store.log.compressor([CompressionRule("*", codec)], 0)
        started_s = time.perf_counter()
        while compressor.step():
            pass
        if compressor.blocks:
            seconds = time.perf_counter() - started_s
            rate = compressor.before_bytes / 1e6 / seconds
            tell(f"{codec}: {compressor.blocks} blocks at {rate:.0f} MB/s")
        yield store


def _size_mb(log: Log) -> float:
    found = log.statistics(TP)
    assert found is not None
    return found.size_bytes / 1e6


def _local(logs: LocalLogs, store: StoreDouble) -> Side:
    client, log = store.client(), logs.open(store.location)
    assert log is not None

    def read() -> float:
        everything = RecordRange(*TP, 0, store.log.end(TP))
        return _rate(log.records(client, GetRequest((everything,))))

    return read


def _flight(store: StoreDouble) -> Side:
    client = store.client()

    def read() -> float:
        return _rate(
            client.read(
                TP,
                0,
                store.log.end(TP),
                times=False,
                max_records=MAX_BATCH_RECORDS,
                max_bytes=MAX_BATCH_BYTES,
                timeout_s=PATIENCE_S,
            )
        )

    return read


def _rate(found: Iterator[RecordBatch]) -> float:
    started_s = time.perf_counter()
    count = sum(batch.count for batch in found)
    return count / 1e6 / (time.perf_counter() - started_s)


def _ingest(directory: Path, codec: str, values: Values, batches: int) -> Side:
    """Append while a thread compresses, as a busy store does."""

    def ingest() -> float:
        with TemporaryDirectory(dir=directory) as path, Log(Path(path)) as log:
            compressor = log.compressor([CompressionRule("*", codec)], 0)
            ended = threading.Event()

            def compress() -> None:
                pause_s = 0.0
                while not ended.wait(pause_s):
                    started_s = time.perf_counter()
                    compressor.step()
                    pause_s = 3 * (time.perf_counter() - started_s) + 0.001

            thread = threading.Thread(target=compress)
            log.append([RecordBatch(TP, 0, values)])
            thread.start()
            started_s = time.perf_counter()
            for number in range(1, batches + 1):
                log.append([RecordBatch(TP, number * BATCH, values)])
            rate = batches * BATCH / 1e6 / (time.perf_counter() - started_s)
            ended.set()
            thread.join()
            return rate

    return ingest
