"""What the rows about the mesh share: a bare pyzmq loop, and nodes in processes of their own."""

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

T = TypeVar("T")

FULL_BYTES = 100_000_000
"""Bytes of values in a measurement, but for values so small that records are what counts."""

MIN_RECORDS = 500_000

UNIT = "M records/s"

ANY_PORTS = ("--sub-address", "tcp://127.0.0.1:0", "--pub-address", "tcp://127.0.0.1:0")

HEADER = b"Mbench\0\x01\x20" + b"A" * 32 + b"\x05bench"
_SEQUENCE = Struct(">Q")

# Processes are spawned, so that sender and receiver have nothing in common but the socket.
_processes = multiprocessing.get_context("spawn")


def full_records(size_bytes: int) -> int:
    """Records in a measurement: some seconds' worth."""
    return max(FULL_BYTES // size_bytes, MIN_RECORDS)


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


class Child:
    """A function in a process of its own; it is given its end of a pipe as first argument."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self.pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=function, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def join(self) -> None:
        """Waits until it has ended."""
        self._process.join()


@contextlib.contextmanager
def up(
    directory: Path, flags: Sequence[str], program: str = "dafka_core.cli"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """A tower and a store in a process: its number, and what it says when it is ready."""
    command = [sys.executable, "-m", program, "up", "--dir", str(directory), *ANY_PORTS, *flags]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process.pid, json.loads(line.removeprefix(b"READY "))
        finally:
            process.terminate()


def in_child(function: Callable[..., T], *arguments: object) -> T:
    """What ``function`` returns when a process of its own runs it."""
    child = Child(_send_result, function, arguments)
    result: T = child.pipe.recv()
    child.join()
    return result


def _send_result(
    pipe: Connection, function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    pipe.send(function(*arguments))
