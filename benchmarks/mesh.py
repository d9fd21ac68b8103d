"""Shared parts of the mesh's rows: a bare pyzmq loop, and nodes in their own processes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar

import zmq

from benchmarks.processes import started

T = TypeVar("T")

FULL_BYTES = 100_000_000
"""Bytes of values in a measurement, except for very small values, where records count."""

MIN_RECORDS = 500_000

UNIT = "M records/s"

ANY_PORTS = ("--sub-address", "tcp://127.0.0.1:0", "--pub-address", "tcp://127.0.0.1:0")

HEADER = b"Mbench\0\x01\x20" + b"A" * 32 + b"\x05bench"
_SEQUENCE = Struct(">Q")

# Spawned processes, so that sender and receiver share nothing but the socket.
_processes = multiprocessing.get_context("spawn")


def full_records(size_bytes: int) -> int:
    """Return the records of a measurement: some seconds' worth."""
    return max(FULL_BYTES // size_bytes, MIN_RECORDS)


def values_of(count: int, size_bytes: int) -> list[bytes]:
    """Return distinct records of one size."""
    return [b"%0*d" % (size_bytes, index) for index in range(count)]


def bare_loop(count: int, size_bytes: int) -> float:
    """Return millions of two-frame messages a second that pyzmq receives from another process."""
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


class Child:
    """A function in its own process; its first argument is its end of a pipe."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self.pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=function, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def join(self) -> None:
        """Wait until it has ended."""
        self._process.join()


@contextlib.contextmanager
def up(
    directory: Path, flags: Sequence[str], program: str = "dafka_core.cli"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Start a tower and a store in a process; yield its id and its ready line."""
    command = [sys.executable, "-m", program, "up", "--dir", str(directory), *ANY_PORTS, *flags]
    with started(command, subprocess.DEVNULL) as (pid, line):
        yield pid, json.loads(line.removeprefix("READY "))


def in_child(function: Callable[..., T], *arguments: object) -> T:
    """Run ``function`` in its own process; return its result."""
    child = Child(_send_result, function, arguments)
    result: T = child.pipe.recv()
    child.join()
    return result


def _send_result(
    pipe: Connection, function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    pipe.send(function(*arguments))
