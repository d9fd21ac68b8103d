"""The mesh, record by record, against a bare pyzmq receive loop of two-frame messages."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from struct import Struct

import zmq

from benchmarks.figures import Figure, compare_rates
from dafka_core import Consumer, EmbeddedCluster, Producer

HEADER = b"Mbench\0\x01\x20" + b"A" * 32 + b"\x05bench"
_SEQUENCE = Struct(">Q")

# Processes are spawned, so that sender and receiver have nothing in common but the socket.
_processes = multiprocessing.get_context("spawn")


def values_of(count: int, size_bytes: int) -> list[bytes]:
    """Records that differ, of one size."""
    return [b"%0*d" % (size_bytes, index) for index in range(count)]


def bare_loop(count: int, size_bytes: int) -> float:
    """Millions of two-frame messages a second that pyzmq receives, one process to another."""
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.set_hwm(200_000)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    sender = _processes.Process(target=_send_bare, args=(port, count, size_bytes))
    sender.start()
    recv = socket.recv
    recv(), recv()
    started = time.perf_counter()
    for _ in range(count):
        recv()
        recv()
    elapsed_s = time.perf_counter() - started
    sender.join()
    context.destroy(linger=0)
    return count / elapsed_s / 1e6


def _send_bare(port: int, count: int, size_bytes: int) -> None:
    values = values_of(count, size_bytes)
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.set_hwm(200_000)
    socket.connect(f"tcp://127.0.0.1:{port}")
    send, pack, more = socket.send, _SEQUENCE.pack, zmq.SNDMORE
    for sequence, value in enumerate([b"first", *values]):
        send(HEADER + pack(sequence), more)
        send(value)
    socket.close()
    context.term()


def store_ingest(cluster: EmbeddedCluster, count: int, size_bytes: int, topic: str) -> float:
    """Millions of records a second that a store has acknowledged, synced, over the mesh."""
    return _in_child(_produce, cluster.tower, topic, count, size_bytes)


def _produce(tower: str, topic: str, count: int, size_bytes: int) -> float:
    values = values_of(count, size_bytes)
    with Producer(topic, tower=tower) as producer:
        producer.publish(b"first")
        producer.flush(30)
        started = time.perf_counter()
        producer.publish_many(values)
        producer.flush(120)
        return count / (time.perf_counter() - started) / 1e6


def consumer_replay(cluster: EmbeddedCluster, count: int, topic: str) -> float:
    """Millions of records a second that our consumer iterates over, from our store."""
    return _in_child(_consume, cluster.tower, topic, count)


def _consume(tower: str, topic: str, count: int) -> float:
    with Consumer(tower=tower) as consumer:
        consumer.subscribe(topic)
        records: Iterator[object] = iter(consumer)
        next(records)
        started = time.perf_counter()
        for _, _record in zip(range(count), records, strict=False):
            pass
        return count / (time.perf_counter() - started) / 1e6


def _in_child(function: object, *arguments: object) -> float:
    ours, theirs = _processes.Pipe()
    child = _processes.Process(target=_send_result, args=(theirs, function, arguments))
    child.start()
    result: float = ours.recv()
    child.join()
    return result


def _send_result(pipe: Connection, function: object, arguments: tuple[object, ...]) -> None:
    assert callable(function)
    pipe.send(function(*arguments))


def run(*, pairs: int, count: int) -> Iterator[Figure]:
    """Ingest and replay, on 100-byte and 1-kB records."""
    for size_bytes in (100, 1_000):
        records = count if size_bytes == 100 else count // 4
        topics = [f"bench-{size_bytes}-{pair}" for pair in range(pairs)]
        reference = partial(bare_loop, records, size_bytes)
        with EmbeddedCluster() as cluster:
            yield compare_rates(
                f"store ingest over the mesh, synced, {size_bytes} B",
                _each(topics, partial(store_ingest, cluster, records, size_bytes)),
                reference,
                unit="M records/s",
                goal=0.4,
                pairs=pairs,
            )
            yield compare_rates(
                f"consumer replay record by record, {size_bytes} B",
                _each(topics, partial(consumer_replay, cluster, records)),
                reference,
                unit="M records/s",
                goal=0.5,
                pairs=pairs,
            )


def _each(topics: list[str], measure: Callable[[str], float]) -> Callable[[], float]:
    """Measures the next topic at each call."""
    left = iter(topics)
    return lambda: measure(next(left))
