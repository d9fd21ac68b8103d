"""Stores with Arrow Flight and without a mesh: each may be behind, or gone, as a test wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.store_location import StoreLocation
from dafka_core.log_entries import Discard
from dafka_core.records import (
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)
from dafka_core.storage import Log
from dafka_spark.cluster.connections import MeshReader
from dafka_spark.options import MeshAddress
from tests.unit.dafka_spark.memory import MemorySource


class Served:
    """A log, and Flight in front of it.  Topic and records are as ``MemorySource``'s."""

    def __init__(self, directory: Path, store: str) -> None:
        self.directory = directory
        self.store = store
        self.log = Log(directory)
        self._service: FlightService | None = None
        self.start()

    def start(self, port: int = 0) -> None:
        """Serves, with a new session."""
        self._service = FlightService(
            ServerContext(self.log, self, self.store, dict),
            bind_host="127.0.0.1",
            port=port,
            socket_path=None,
        )

    @property
    def location(self) -> StoreLocation:
        assert self._service is not None
        return self._service.location

    @property
    def port(self) -> int:
        assert self._service is not None
        port: int = self._service.port
        return port

    def add(self, tp: TopicPartition, count: int, size_bytes: int = 0) -> None:
        end = self.log.end(tp)
        values = [value(offset, size_bytes) for offset in range(end, end + count)]
        self.log.append([RecordBatch.of(tp, end, values)])

    def stop(self) -> None:
        """Serves no more; the log is still there."""
        assert self._service is not None
        self._service.close()

    def close(self) -> None:
        self.stop()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- a StoreBackend; nothing is put here ------------------------------------------------------

    def put(self, batch: RecordBatch) -> Future[int]:
        raise NotImplementedError

    def stage(self, batch: RecordBatch, attempt: str, version: int) -> Future[int]:
        raise NotImplementedError

    def commit(self, transactions: Sequence[StagedTransaction]) -> Future[None]:
        raise NotImplementedError

    def discard(self, discards: Sequence[Discard]) -> Future[None]:
        raise NotImplementedError

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        timeout_s: float,
        transaction: Transaction | None = None,
    ) -> int:
        raise NotImplementedError


class HeardOf(MemorySource):
    """A reader of a mesh with these stores, and, in ``logs``, what deployed ones have."""

    def __init__(self, stores: Iterable[Served] = (), deployed: Iterable[str] = ()) -> None:
        super().__init__()
        self.served = list(stores)
        self.deployed = list(deployed)

    def connect(self, via: MeshAddress) -> AbstractContextManager[MeshReader]:
        return nullcontext(self)

    def stores(self) -> list[str]:
        return [served.store for served in self.served] + self.deployed

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        return {served.store: served.location.locations for served in self.served}


def value(offset: int, size_bytes: int = 0) -> bytes:
    """The record at an offset, padded to a size."""
    return b"%0*d" % (size_bytes, offset)
