"""A store's Flight service over a real log, with the simplest backend there can be."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import (
    Log,
)
from dafka_core.testing import PATIENCE_S, StoreDouble

T = TypeVar("T")

TOPIC, PARTITION = "t", "P"
TP = TopicPartition(TOPIC, PARTITION)
STORE = "5" * 32
BLOCK_BYTES, BLOCKS = 2 << 20, 20
LARGEST = {"max_records": MAX_BATCH_RECORDS, "max_bytes": MAX_BATCH_BYTES}


def value(offset: int) -> bytes:
    """The record at an offset: of a length of its own, and nothing another one has."""
    return b"%d," % offset * (1 + offset * 7919 % 23)


def values(start: int, end: int) -> list[bytes]:
    return [value(offset) for offset in range(start, end)]


def array(start: int, end: int) -> pa.BinaryArray:
    return pa.array(values(start, end), pa.binary())


class Served(StoreDouble):
    """A store in a directory whose path is short enough for a socket."""

    def __init__(self, directory: Path, log: Log | None = None) -> None:
        super().__init__(directory, STORE, log=log, socket=True)

    @property
    def unix(self) -> StoreLocation:
        """Found at its socket only."""
        location = self.location
        return StoreLocation(STORE, location.locations[:1], machine=location.machine)

    @property
    def tcp(self) -> StoreLocation:
        """Found at its port only."""
        return StoreLocation(STORE, self.location.locations[1:])

    def plain(self) -> flight.FlightClient:
        """A client that knows nothing of Dafka."""
        return flight.connect(self.location.locations[1])

    def extend(self, end: int, *, topic: str = TOPIC, partition: str = PARTITION) -> None:
        """Appends up to ``end``, in one batch."""
        tp = TopicPartition(topic, partition)
        self.append(tp, values(self.log.end(tp), end))


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
