"""A Flight service over a real log, with a minimal backend."""

import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import PATIENCE_S, StoreDouble, wait_until

T = TypeVar("T")

TOPIC, PARTITION = "t", "P"
TP = TopicPartition(TOPIC, PARTITION)
STORE = "5" * 32
BLOCK_BYTES, BLOCKS = 2 << 20, 20
LARGEST: dict[str, Any] = {"max_records": MAX_BATCH_RECORDS, "max_bytes": MAX_BATCH_BYTES}


def value(offset: int) -> bytes:
    """Return the distinct record of an offset, with a length of its own."""
    return b"%d," % offset * (1 + offset * 7919 % 23)


def values(start: int, end: int) -> list[bytes]:
    return [value(offset) for offset in range(start, end)]


def array(start: int, end: int) -> pa.BinaryArray:
    return pa.array(values(start, end), pa.binary())


class Served(StoreDouble):
    """A store in a directory whose path is short enough for a socket."""

    def __init__(self, directory: Path, log: Log | None = None, keys: KeyFiles = NO_KEYS) -> None:
        super().__init__(directory, STORE, log=log, socket=True, keys=keys)

    @property
    def unix(self) -> StoreLocation:
        location = self.location
        return StoreLocation(STORE, location.locations[:1], machine=location.machine)

    @property
    def tcp(self) -> StoreLocation:
        return StoreLocation(STORE, self.location.locations[1:])

    def plain(self) -> flight.FlightClient:
        return flight.connect(self.location.locations[1])

    def extend(self, end: int, *, topic: str = TOPIC, partition: str = PARTITION) -> None:
        """Append up to ``end``, in one batch."""
        tp = TopicPartition(topic, partition)
        self.append(tp, values(self.log.end(tp), end))


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A temporary directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="dafka-") as path:
        yield Path(path).resolve()


def check(batches: Iterable[RecordBatch], start: int, end: int) -> list[RecordBatch]:
    """Check that the batches are the records from ``start`` to ``end``; return them."""
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
    limits: dict[str, Any] = LARGEST | sizes
    return client.read(TP, 0, BLOCKS * 200, times=True, timeout_s=timeout_s, **limits)


def total(batches: Iterable[RecordBatch]) -> int:
    return sum(len(batch.values) for batch in batches)


def forked(work: Callable[[], object]) -> str:
    """Run ``work`` in a child process; return its result or error."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns about this.
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


READERS = """
import sys, lmdb
with lmdb.open(sys.argv[1], readonly=True, create=False) as log:
    print(log.readers(), end="")
"""


def open_reads(directory: Path) -> int:
    """Return how many snapshots of a log are in use, by LMDB's own list.

    Called in another process, as no process may open a log twice.
    """
    command = [sys.executable, "-c", READERS, str(directory)]
    return len(reading(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def reading(readers: str) -> list[str]:
    """Return the processes of LMDB's readers in a transaction: others have "-" as its number."""
    rows = [line.split() for line in readers.splitlines()[1:]]
    return [process_id for process_id, _thread, txn in rows if txn != "-"]


def put(client: StoreClient, start: int, **options: Any) -> PutStream:
    return client.put(TP, start, **{"timeout_s": PATIENCE_S} | options)


def put_all(client: StoreClient, start: int, *arrays: pa.Array, **options: Any) -> int:
    with put(client, start, **options) as whole:
        for each in arrays:
            whole.write(each)
        return whole.finish(options.get("timeout_s", PATIENCE_S))


def stored(served: Served, end: int) -> None:
    """Check that the partition has the first ``end`` values."""
    batches = served.client().read(TP, 0, end, times=False, timeout_s=PATIENCE_S, **LARGEST)
    check(batches, 0, end)
    assert served.log.end(TP) == end


def wait_for_end(client: StoreClient, end: int) -> None:
    """Wait until a returning store answers: gRPC reconnects at intervals."""

    def reached() -> bool:
        try:
            return client.heads(None, timeout_s=1)[0].end == end
        except StoreUnreachableError:
            return False

    wait_until(reached)


def read(client: StoreClient, start: int, end: int, **sizes: Any) -> Any:
    arguments = {"times": True, "timeout_s": PATIENCE_S} | LARGEST | sizes
    return client.read(TP, start, end, **arguments)
