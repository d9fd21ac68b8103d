"""A child process that reads a store's log from its file on command.

``local_reader.py LOCATION MODULE`` prints its process id and whether it can write to the directory.
For each input line it reads the last 1,000 records and prints their number; for ``stop`` it prints
that it holds a lease, and waits for one more line meanwhile. At the end of its input it prints
``right`` if all records equalled ``MODULE.value``.
"""

import os
import sys
from importlib import import_module
from typing import Any

from dafka_core.errors import DataLossError, LeaseEndedError
from dafka_core.flight.local_log import LocalLog, LocalLogs
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import TP

LAST = 1_000


def stopping(files: Any, *arguments: Any, original: Any = LocalLog._block) -> Any:
    """Read a block, and pause before the lease is checked."""
    found = original(files, *arguments)
    print("reading", flush=True)
    sys.stdin.readline()
    return found


def main() -> None:
    location = StoreLocation.parse(sys.argv[1])
    value = import_module(sys.argv[2]).value
    log, client = LocalLogs().open(location), StoreClient(location)
    print(os.getpid(), os.access(location.directory, os.W_OK), flush=True)
    if log is None:
        print("not here", flush=True)
        return
    block = LocalLog._block
    kept: list[RecordBatch] = []
    for line in iter(sys.stdin.readline, ""):
        LocalLog._block = stopping if line == "stop\n" else block  # type: ignore[assignment]
        [held] = client.heads(None, timeout_s=PATIENCE_S)
        start, count = max(held.earliest, held.end - LAST), 0
        try:
            wanted = RecordRange(*TP, start, held.end)
            for batch in log.records(client, GetRequest((wanted,))):
                kept.append(batch)
                count += batch.count
        except (LeaseEndedError, DataLossError) as error:
            print(type(error).__name__, end=" ")
        print(count, flush=True)
    for batch in kept:
        assert batch.values.to_list() == [value(n) for n in range(batch.offset, batch.end)]
    print("right", flush=True)


if __name__ == "__main__":
    main()
