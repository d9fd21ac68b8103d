"""Stores with Arrow Flight and without a mesh, and the queries that read them, without Spark."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.testing import StoreDouble
from dafka_spark.cluster import connections
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full, struct
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import OffsetRange
from tests.memory_reader import MemoryReader

A, B, C = (TopicPartition("t", name) for name in "ABC")

Patch = pytest.MonkeyPatch


class Logged:
    """The messages of the connector, and not those of nodes, which log in threads."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("WARNING", "dafka_spark")
        self._caplog, self.clear = caplog, caplog.clear

    @property
    def messages(self) -> list[str]:
        records = [*self._caplog.records]
        return [each.getMessage() for each in records if each.name == "dafka_spark"]

    @property
    def text(self) -> str:
        return "\n".join(self.messages)


class Served(StoreDouble):
    """A store with records that have their offset as value, as in ``MemoryReader``."""

    def add(self, tp: TopicPartition, count: int, size_bytes: int = 0) -> Self:
        """Append records and return the store."""
        end = self.log.end(tp)
        self.append(tp, [value(offset, size_bytes) for offset in range(end, end + count)])
        return self

    def add_at(self, tp: TopicPartition, *times_ms: float) -> None:
        """Append one record for each time, in milliseconds since the epoch UTC."""
        self.log.append([timed(tp, self.log.end(tp), *times_ms)])


Serve = Callable[[str], Served]  # starts a store, by name


class Mesh(MemoryReader):
    """A reader of a mesh with these stores; ``logs`` has the records of C nodes."""

    def __init__(self, stores: Iterable[Served] = (), c_nodes: Iterable[str] = ()) -> None:
        super().__init__()
        self.served = list(stores)
        self.c_nodes = list(c_nodes)

    def stores(self) -> list[str]:
        return [served.address for served in self.served] + self.c_nodes

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        return {served.address: served.location.locations for served in self.served}


class Batch(DafkaBatchReader):
    """A batch query as Spark drives it, of topic ``t`` unless an option selects another one."""

    def __init__(
        self, mesh: MemoryReader | None = None, columns: str = "", /, **given: str
    ) -> None:
        named = {"fetchtimeoutms": "10000", **{name.lower(): each for name, each in given.items()}}
        if not named.keys() & {"subscribe", "subscribepattern", "assign"}:
            named["subscribe"] = "t"
        options = SourceOptions.of(named).for_batch()
        schema = full(value=options.value_type, headers=options.include_headers)
        if columns:
            schema = struct({name: schema[name].dataType for name in columns.split()})
        super().__init__(schema, options, mesh.connect if mesh else connections.borrow_reader)

    def ranges(self) -> list[OffsetRange]:
        tasks: list[Any] = self.partitions()
        return [each for task in tasks for each in task.ranges]

    def batches(self, tasks: Sequence[Any] | None = None) -> list[pa.RecordBatch]:
        """Run tasks, by default those of a new plan."""
        tasks = self.partitions() if tasks is None else tasks
        return [batch for task in tasks for batch in self.read(task)]

    def rows(self, tasks: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        return [row for batch in self.batches(tasks) for row in batch.to_pylist()]

    def offsets(self, tasks: Sequence[Any] | None = None) -> dict[str, list[int]]:
        """Return the offsets that tasks read, by partition."""
        found: dict[str, list[int]] = {}
        for row in self.rows(tasks):
            found.setdefault(row["partition"], []).append(row["offset"])
        return found


def close_connections() -> None:
    """Close what the queries of this process keep open for a minute.

    A kept reader with keys checks their directory, and logs into a later test if that is gone.
    """
    for pool in (connections._readers, connections._clients, connections._logs):
        pool.close()


def restart_at_pause(patch: Patch, store: Served) -> None:
    """Stop a store; it starts again when a reader pauses before its next attempt."""
    port, pause = store.port, Deadline.pause
    store.stop()

    def start(_: Deadline) -> None:
        patch.setattr(Deadline, "pause", pause)
        store.start(port)

    patch.setattr(Deadline, "pause", start)


def fail(patch: Patch, method: str, *stores: str) -> list[str]:
    """Let stores, by default all, not answer a method; return those that are asked, in order."""
    requests: list[str] = []
    answer: Callable[..., Any] = getattr(StoreClient, method)

    def failing(client: StoreClient, *given: Any, **named: Any) -> Any:
        store = client.location.store
        if stores and store not in stores:
            return answer(client, *given, **named)
        requests.append(store)
        raise StoreUnreachableError(store, "it is gone")

    patch.setattr(StoreClient, method, failing)
    return requests


def count_requests(patch: Patch, *methods: str) -> dict[str, int]:
    """Count the requests of each method from now on."""
    found: dict[str, int] = {}
    lock = threading.Lock()

    def counted(method: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(StoreClient, method)

        def spied(*given: Any, **named: Any) -> Any:
            with lock:
                found[method] = found.get(method, 0) + 1
            return call(*given, **named)

        return spied

    for method in methods:
        patch.setattr(StoreClient, method, counted(method))
    return found


def value(offset: int, size_bytes: int = 0) -> bytes:
    """The record at an offset, padded to a size."""
    return b"%0*d" % (size_bytes, offset)


def timed(tp: TopicPartition, start: int, *times_ms: float) -> RecordBatch:
    """Return records from offset ``start`` on, one for each time."""
    values = Values.of([value(offset) for offset in range(start, start + len(times_ms))])
    times = np.array([[1, int(time_ms * 1_000)] for time_ms in times_ms], np.int64)
    return RecordBatch(tp, start, values, times=times)
