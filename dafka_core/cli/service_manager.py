"""What systemd is told of a node: that it serves, that it lives, and that it stops.

It is systemd's protocol for units of ``Type=notify``: a word in a datagram to the socket that the
environment names.  Without that variable nobody is told anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
"""How long systemd waits for a sign of life, in microseconds, before it starts the unit again."""

SIGNS: Final = 3
"""So many signs of life within that time: one that is late is no reason to end a node."""

PATIENCE_S: Final = 5.0
"""A systemd that does not listen holds no node up for longer."""


class Served(Protocol):
    """A node, or a server, that a command runs until it is stopped."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; return whether it has."""


@contextmanager
def told_of(node: Served) -> Iterator[None]:
    """Tells systemd that a node serves, meanwhile that it lives, and at the end that it stops."""
    address = os.environ.get(SOCKET, "")
    if not address:
        yield
        return
    _tell(address, "READY=1")
    ended = threading.Event()
    if interval_s := _interval_s(os.environ.get(WATCHDOG, "")):
        arguments = (address, node, interval_s, ended)
        threading.Thread(target=_live, args=arguments, name="dafka-watchdog", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _tell(address, "STOPPING=1")


def _live(address: str, node: Served, interval_s: float, ended: threading.Event) -> None:
    """Tells of life as long as ``/healthz`` would."""
    from dafka_core import Store, Tower
    from dafka_core.metrics.health import is_alive, of_node

    while not ended.wait(interval_s):
        if not isinstance(node, Store | Tower) or is_alive([*of_node(node)]):
            _tell(address, "WATCHDOG=1")


def _interval_s(microseconds: str) -> float:
    return int(microseconds) / 1e6 / SIGNS if microseconds.isdecimal() else 0.0


def _tell(address: str, word: str) -> None:
    if address.startswith("@"):  # an abstract socket, which has no file
        address = "\0" + address[1:]
    # A node works on where nobody listens any more.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(PATIENCE_S)
        sender.sendto(word.encode(), address)
