"""A store's Flight service over a real log, with the simplest backend there can be."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyarrow import flight

from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import (
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)
from dafka_core.storage import (
    Commit,
    Discard,
    Log,
    LogEntry,
    SetTransaction,
    Stage,
)

T = TypeVar("T")

TOPIC, PARTITION = "t", "P"
TP = TopicPartition(TOPIC, PARTITION)
STORE = "5" * 32
PATIENCE_S = 30.0
BLOCK_BYTES, BLOCKS = 2 << 20, 20
LARGEST = {"max_records": MAX_BATCH_RECORDS, "max_bytes": MAX_BATCH_BYTES}


def value(offset: int) -> bytes:
    """The record at an offset: of a length of its own, and nothing another one has."""
    return b"%d," % offset * (1 + offset * 7919 % 23)


def values(start: int, end: int) -> list[bytes]:
    return [value(offset) for offset in range(start, end)]


def array(start: int, end: int) -> pa.BinaryArray:
    return pa.array(values(start, end), pa.binary())


class LogBackend:
    """Appends in a thread, one batch after the other, as long as ``open`` is set."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.open = threading.Event()
        self.open.set()
        self.failure: Exception | None = None
        self.taken: list[RecordBatch] = []
        self.others: dict[str, tuple[str, ...]] = {}
        self._pool = ThreadPoolExecutor(1)

    def put(self, batch: RecordBatch) -> Future[int]:
        self.taken.append(batch)
        return self._pool.submit(self._append, batch)

    def stage(self, batch: RecordBatch, attempt: str, version: int) -> Future[int]:
        self.taken.append(batch)
        return self._pool.submit(self._write, Stage(batch, attempt, version), batch.end)

    def commit(self, transactions: Sequence[StagedTransaction]) -> Future[None]:
        return self._pool.submit(self._write, Commit(tuple(transactions)), None)

    def discard(self, discards: Sequence[Discard]) -> Future[None]:
        def work() -> None:
            for each in discards:
                self._write(each, None)

        return self._pool.submit(work)

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        timeout_s: float,
        transaction: Transaction | None = None,
    ) -> int:
        deadline = time.monotonic() + timeout_s
        while self.log.end(tp) < end and time.monotonic() < deadline:
            time.sleep(0.01)
        if transaction is not None and self.log.end(tp) >= end:
            self._write(SetTransaction(tp, transaction), None)
        return self.log.end(tp)

    def close(self) -> None:
        self.open.set()
        self._pool.shutdown()

    def _write(self, entry: LogEntry, result: T) -> T:
        self.open.wait()
        (error,) = self.log.write([entry])
        if error is not None:
            raise error
        return result

    def _append(self, batch: RecordBatch) -> int:
        self.open.wait()
        if self.failure is not None:
            raise self.failure
        self.log.append([batch])
        return batch.end


class Served:
    """A log with its service, in a directory whose path is short enough for a socket."""

    def __init__(self, directory: Path, log: Log | None = None) -> None:
        self.directory = directory
        self.log = log or Log(directory)
        self.backend = LogBackend(self.log)
        self.service = FlightService(
            ServerContext(self.log, self.backend, STORE, lambda: self.backend.others),
            bind_host="127.0.0.1",
            port=0,
            socket_path=str(directory / "flight.sock"),
        )
        self.location = self.service.location
        self._clients: list[StoreClient] = []

    @property
    def unix(self) -> StoreLocation:
        """Found at its socket only."""
        location = self.location
        return StoreLocation(STORE, location.locations[:1], machine=location.machine)

    @property
    def tcp(self) -> StoreLocation:
        """Found at its port only."""
        return StoreLocation(STORE, self.location.locations[1:])

    def client(self, location: StoreLocation | None = None) -> StoreClient:
        client = StoreClient(location or self.location)
        self._clients.append(client)
        return client

    def plain(self) -> flight.FlightClient:
        """A client that knows nothing of Dafka."""
        return flight.connect(self.location.locations[1])

    def append(self, end: int, *, topic: str = TOPIC, partition: str = PARTITION) -> None:
        """Appends up to ``end``, in one batch."""
        tp = TopicPartition(topic, partition)
        start = self.log.end(tp)
        self.log.append([RecordBatch.of(tp, start, values(start, end))])

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.backend.open.set()
        self.service.close()
        self.backend.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """One that has room for a socket's path wherever tests keep their files."""
    with tempfile.TemporaryDirectory(prefix="dafka-") as path:
        yield Path(path).resolve()


def check(batches: Iterable[RecordBatch], start: int, end: int) -> list[RecordBatch]:
    """Asserts that the batches are the records from ``start`` up to ``end``; the batches."""
    found = []
    at = start
    for batch in batches:
        assert batch.offset == at
        array = batch.values.to_arrow()
        assert array.to_pylist() == values(at, batch.end)
        assert array.null_count == 0
        at = batch.end
        found.append(batch)
    assert at == end
    return found


def everything(client: StoreClient, timeout_s: float = PATIENCE_S, **sizes: int) -> Any:
    """All that a ``large`` log has."""
    sizes = LARGEST | sizes
    return client.read(TP, 0, BLOCKS * 200, times=True, timeout_s=timeout_s, **sizes)


def total(batches: Iterable[RecordBatch]) -> int:
    return sum(len(batch.values) for batch in batches)


def forked(work: Callable[[], object]) -> str:
    """What a child of this process says of ``work``: its result or its error."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python from 3.12 on warns of what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child_id = os.fork()
    if child_id == 0:
        try:
            os.write(writing, str(work()).encode())
        except BaseException as error:  # noqa: BLE001 -- the parent looks at it
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child_id, 0)
    return said


def pins(log: Log) -> int:
    """How many snapshots, or buffers of them, this process has in use."""
    mapped = log._env._map
    assert mapped is not None
    return len(mapped.pins)


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
