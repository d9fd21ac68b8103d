"""A store's log with Arrow Flight in front of it, in this process and without a mesh."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import DiskFullError
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import ServerKeys
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import (
    LogEntry,
    NameClient,
    SetTransaction,
    records_of,
)
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.storage import Log
from dafka_core.system.closing import Closing
from dafka_core.testing.waiting import wait_until


class LogBackend(Closing):
    """Writes a log in a thread, one entry after the other, as a store's node does.

    Attributes:
        open: entries wait while it is cleared.
        failure: the error of appends, if set.
        refusal: the full disk that the store reports, if set.
        taken: all batches that were put or staged.
        others: locations of other stores by address.
    """

    def __init__(self, log: Log) -> None:
        self.open = threading.Event()
        self.open.set()
        self.failure: Exception | None = None
        self.refusal: DiskFullError | None = None
        self.taken: list[RecordBatch] = []
        self.others: dict[str, tuple[str, ...]] = {}
        self._log = log
        self._pool = ThreadPoolExecutor(1)

    def put(self, *entries: LogEntry) -> Future[Any]:
        """Write entries in order."""
        self.taken += filter(None, map(records_of, entries))
        return self._pool.submit(self._write, *entries)

    def name_client(self, tp: TopicPartition, client: str) -> None:
        """Keep the name of a client."""
        if client:
            self._pool.submit(self._write, NameClient(tp, client))

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        timeout_s: float,
        transaction: Transaction | None = None,
    ) -> int:
        """Wait for records, set the partition's last transaction, and return its end."""
        try:
            wait_until(lambda: self._log.end(tp) >= end, timeout_s=timeout_s)
        except AssertionError:
            return self._log.end(tp)
        if transaction is not None:
            self._write(SetTransaction(tp, transaction))
        return self._log.end(tp)

    def close(self) -> None:
        """Write queued entries, then end."""
        self.open.set()
        self._pool.shutdown()

    def _write(self, *entries: LogEntry) -> int | None:
        self.open.wait()
        for entry in entries:
            if isinstance(entry, RecordBatch) and self.failure is not None:
                raise self.failure
            (error,) = self._log.write([entry])
            if error is not None:
                raise error
        return batch.end if (batch := records_of(entries[-1])) else None


class StoreDouble(Closing):
    """A store for reading and writing over Flight, or by its file.

    Args:
        directory: of its log.
        address: the store's.
        log: an opened log of the directory, to take over.
        socket: also listen at a socket in the directory.
        keys: its credentials, and its clients'.
    """

    def __init__(
        self,
        directory: Path,
        address: str = "5" * 32,
        *,
        log: Log | None = None,
        socket: bool = False,
        keys: KeyFiles = NO_KEYS,
    ) -> None:
        self.directory = directory
        self.address = address
        self.log = log or Log(directory)
        self.backend = LogBackend(self.log)
        self._socket_path = str(directory / "flight.sock") if socket else None
        self.keys = keys
        self._clients: list[StoreClient] = []
        self.start()

    def start(self, port: int = 0) -> None:
        """Serve the log, with a new session."""
        self.context = ServerContext(
            self.log,
            self.backend,
            self.address,
            lambda: self.backend.others,
            keys=ServerKeys(self.keys) if self.keys.secret_key_file else None,
        )
        self.service = FlightService(
            self.context,
            bind_host="127.0.0.1",
            port=port,
            socket_path=self._socket_path,
        )

    @property
    def location(self) -> StoreLocation:
        """Return its location."""
        return self.service.location

    @property
    def port(self) -> int:
        """Return its port."""
        return self.service.port

    def client(
        self, location: StoreLocation | None = None, keys: KeyFiles | None = None
    ) -> StoreClient:
        """Return a client, closed with the store; without ``keys`` it has the store's."""
        client = StoreClient(location or self.location, self.keys if keys is None else keys)
        self._clients.append(client)
        return client

    def append(self, tp: TopicPartition, values: Iterable[bytes]) -> None:
        """Append records to the log itself."""
        self.log.append([RecordBatch.of(tp, self.log.end(tp), values)])

    def stop(self) -> None:
        """Stop serving, as a store that is gone; ``start`` serves again."""
        self.service.close()

    def close(self) -> None:
        """End the service, its clients and the log."""
        for client in self._clients:
            client.close()
        self.backend.open.set()
        self.stop()
        self.backend.close()
        self.log.close()
