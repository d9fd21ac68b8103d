"""Concurrent calls to a store while its machine vanishes.

calls.py TOWER STORE        prints "begun" when each call has begun, waits for a line of input,
                            finishes the calls, and prints each call's outcome and duration
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S
from dafka_spark.cluster import connections
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.sink.store_session import PickedStore, StoreSession
from dafka_spark.source.offset_ranges import OffsetRange, StoreRange
from dafka_spark.source.partition_reader import fetch

READ, PUT = TopicPartition("read", "A" * 32), TopicPartition("put", "B" * 32)
TIMEOUT_S = 60.0
RECORD, RECORDS = b"x" * (1 << 20), 60
"""More than a connection's buffers hold."""

Steps = Iterator[int]
"""One call: it yields a first result before the store vanishes, and then the outcome."""


def read(client: StoreClient) -> Steps:
    batches = client.read(
        READ, 0, RECORDS, times=False, max_records=1, max_bytes=1 << 20, timeout_s=TIMEOUT_S
    )
    yield next(batches).count
    yield sum(batch.count for batch in batches)


def put(client: StoreClient) -> Steps:
    with client.put(PUT, 0, timeout_s=TIMEOUT_S) as stream:
        stream.write(pa.array([b"1"]))
        yield stream.wait_durable(1, timeout_s=PATIENCE_S)
        stream.write(pa.array([b"2"]))
        yield stream.finish(TIMEOUT_S)


def wait(client: StoreClient) -> Steps:
    yield len(client.heads(None, timeout_s=PATIENCE_S))
    yield client.wait(READ, RECORDS + 1, timeout_s=TIMEOUT_S)


def read_task(tower: str, far: StoreClient, near: StoreClient) -> Steps:
    given = {"tower": tower, "subscribe": READ.topic, "fetch": "flight", "maxRecordsPerBatch": "1"}
    options = SourceOptions.of(given)
    held = [StoreRange(each.location, 0, RECORDS) for each in (far, near)]
    wanted = OffsetRange(*READ, 0, RECORDS, tuple(held))
    batches = fetch([wanted], options, connections.borrow_reader, times=False)
    taken = next(batches).end
    yield taken
    yield taken + sum(batch.end - batch.offset for batch in batches)


def write_task(tower: str, far: str) -> Steps:
    options = SinkOptions.of({"tower": tower})
    with WriterFactory(options, PickedStore(far, ())) as factory:
        writer = factory.open(TopicPartition("write", "0" * 32))
        writer.write(pa.array([b"1"] * 10))
        writer.pause(Deadline(TIMEOUT_S))
        yield 10
        writer.write(pa.array([b"2"] * 10))
        yield writer.finish(Deadline(TIMEOUT_S)).end


def main(tower: str, far: str) -> None:
    with StoreSession(SinkOptions.of({"tower": tower}).mesh_address) as session:
        session.require(2, Deadline(30))
        clients = {client.location.store: client for client in session.clients()}
        client = clients.pop(far)
        (near,) = clients.values()
        with client.put(READ, 0, timeout_s=PATIENCE_S) as stream:
            for _ in range(RECORDS):
                stream.write(pa.array([RECORD]))
            stream.finish(PATIENCE_S)
        near.wait(READ, RECORDS, timeout_s=PATIENCE_S)
        calls: dict[str, Steps] = {
            "read": read(client),
            "put": put(client),
            "wait": wait(client),
            "read_task": read_task(tower, client, near),
            "write_task": write_task(tower, far),
        }
        for steps in calls.values():
            next(steps)
        print("begun", flush=True)
        sys.stdin.readline()
        with ThreadPoolExecutor(len(calls)) as pool:
            outcomes = dict(
                zip(calls, pool.map(_finished(time.monotonic()), calls.values()), strict=True)
            )
        print(json.dumps(outcomes), flush=True)


def _finished(began: float) -> Callable[[Steps], tuple[object, float]]:
    def finish(steps: Steps) -> tuple[object, float]:
        try:
            outcome: object = next(steps)
        except DafkaError as error:
            outcome = str(error)
        return outcome, time.monotonic() - began

    return finish


if __name__ == "__main__":
    main(*sys.argv[1:])
