"""Child processes: one serves a log, the others are its clients.

serving.py serve DIRECTORY      prints its location; for each input line its buffers in use
serving.py read PLACE           reads one batch of everything, reports it, and stops
serving.py put PLACE            puts one batch, reports it, and stops
"""

import json
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa

from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import LARGEST, TOPIC, TP, Served, array


def buffer_bytes() -> int:
    """Return the memory of numpy's arrays and Arrow's buffers in this process."""
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([arrays]).traces
    size: int = pa.total_allocated_bytes() + sum(trace.size for trace in traces)
    return size


def serve(directory: str) -> None:
    tracemalloc.start()
    with Served(Path(directory)) as served:
        print(served.location.packed().decode(), flush=True)
        for _ in sys.stdin:
            use = {
                "buffer_bytes": buffer_bytes(),
                "acks": [each.name for each in threading.enumerate()].count("dafka-flight-acks"),
                "end": served.log.end(TP),
                "free_gets": served.service.context.gets.free,
                "free_puts": served.service.context.puts.free,
            }
            print(json.dumps(use), flush=True)


def read(location: str) -> None:
    client = StoreClient(StoreLocation.parse(location))
    (held,) = client.heads([TOPIC], timeout_s=PATIENCE_S)
    batches = client.read(TP, 0, held.end, times=True, timeout_s=PATIENCE_S, **LARGEST)
    print(len(next(batches).values), flush=True)
    threading.Event().wait()


def put(location: str) -> None:
    client = StoreClient(StoreLocation.parse(location))
    with client.put(TP, 0, timeout_s=PATIENCE_S) as writing:
        writing.write(array(0, 10))
        print(writing.wait_durable(10, timeout_s=PATIENCE_S), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    {"serve": serve, "read": read, "put": put}[sys.argv[1]](sys.argv[2])
