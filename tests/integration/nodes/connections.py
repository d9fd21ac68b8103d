"""TCP connections of this machine as the kernel has them, and cables that can be pulled.

A filter on a connection's own end, which a process with the descriptor may attach, drops what
comes in before TCP sees it: the other end may close, reset or send again, nothing gets through.
"""

import contextlib
import ctypes
import os
import socket as sockets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TABLE = Path("/proc/self/net/tcp")
DESCRIPTORS = Path("/proc/self/fd")

ESTABLISHED: Final = "01"
KEEPALIVE_TIMER: Final = "02"
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

# Not in Python's own socket module.
SO_ATTACH_FILTER: Final = 26
SO_DETACH_FILTER: Final = 27
DROP: Final = struct.pack("@HBBI", 0x06, 0, 0, 0)
"""The filter's only instruction, of the kernel's ``struct sock_filter``: keep 0 bytes."""


class Connection(NamedTuple):
    """One end of a connection."""

    port: int
    peer_port: int
    inode: str

    timer: str
    """Which one runs: one that sends again, that probes a closed window or that keeps alive."""

    due_s: float
    unanswered: int  # probes that nothing came back for

    @property
    def asks_within_s(self) -> float | None:
        """Seconds until the kernel's next keepalive probe; None without one."""
        return self.due_s if self.timer == KEEPALIVE_TIMER else None


def connections() -> list[Connection]:
    """The ends of all established connections, those of other processes as well."""
    rows = [line.split() for line in TABLE.read_text().splitlines()[1:]]
    found = [_connection(row) for row in rows if row[3] == ESTABLISHED]
    # The others are not accepted yet, and their options are not set.
    return [each for each in found if each.inode != "0"]


def _connection(row: list[str]) -> Connection:
    timer, due = row[5].split(":")
    return Connection(
        port=int(row[1].rsplit(":", 1)[1], 16),
        peer_port=int(row[2].rsplit(":", 1)[1], 16),
        inode=row[9],
        timer=timer,
        due_s=int(due, 16) / TICKS_PER_S,
        unanswered=int(row[8]),
    )


def now(connection: Connection) -> Connection | None:
    """Return the connection's present state; None if it has ended."""
    return next((each for each in connections() if each.inode == connection.inode), None)


@contextlib.contextmanager
def cable_pulled(connection: Connection) -> Iterator[None]:
    """Nothing reaches this end, which is one of this process, until the context is left."""
    program = ctypes.create_string_buffer(DROP, len(DROP))
    drop_all = struct.pack("@HP", 1, ctypes.addressof(program))
    with _own(connection) as end:
        end.setsockopt(sockets.SOL_SOCKET, SO_ATTACH_FILTER, drop_all)
    yield
    with _own(connection) as end:
        end.setsockopt(sockets.SOL_SOCKET, SO_DETACH_FILTER, 0)


@contextlib.contextmanager
def _own(connection: Connection) -> Iterator[sockets.socket]:
    """A descriptor beside ZeroMQ's own; left open, it would keep the connection open."""
    for each in DESCRIPTORS.iterdir():
        # Others are opened and closed all the time.
        with contextlib.suppress(FileNotFoundError):
            if str(each.readlink()) == f"socket:[{connection.inode}]":
                with sockets.socket(fileno=os.dup(int(each.name))) as end:
                    yield end
                return
    raise AssertionError(f"{connection} is not of this process")
