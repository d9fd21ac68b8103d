"""Ends streams whose clients neither take nor send anything any more.

A handler whose client stands still waits inside gRPC, which neither tells it nor can be told to
stop, so the watch gives the stream's permit back from a thread of its own.  The handler's thread,
and the one batch that it has in hand, last until the connection ends or the client goes on (and is
refused).  The watch therefore also breaks the connection, as soon as nothing else goes through it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import urllib.parse
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from typing import Final, Self

from dafka_core.flight import limits
from dafka_core.flight.flight_errors import IDLE, UnavailableError
from dafka_core.flight.grpc_workarounds import Address, CallDeadline, Watchdog, break_connections
from dafka_core.system.closing import Closing

AGAIN_S: Final = 1.0
"""How often the watch looks again whether it may break an idle stream's connection: none on which
a client may still be taking the end of another stream."""

_log = logging.getLogger("dafka.store")


class WatchedStream(CallDeadline):
    """One stream; a context.  ``wait`` and ``go_on`` surround what the client is waited for.

    Args:
        permit: given back when the stream is idle, if it has one.
        peer: the client, as gRPC names it.
        what: the stream, for people.
        check: raises when the client may have no more of it.

    Attributes:
        is_ended: whether the permit was taken from it.
        idle_s: how long the client may take nothing.
    """

    def __init__(
        self,
        watch: StreamWatch,
        permit: Closing | None,
        peer: str,
        what: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        # Not in a cycle: a stream that gRPC drops before it began gives its permit back at once.
        own = weakref.proxy(self)
        super().__init__(watch.watchdog, limits.IDLE_S, lambda: watch.on_idle(own))
        self.peer = peer
        self.what = what
        self.is_ended = False
        self.idle_s = limits.IDLE_S
        self._held = [] if permit is None else [permit]
        self._watch = watch
        self._check = check

    def __enter__(self) -> Self:
        self._watch.streams.add(self)
        return self.start()

    def wait(self, size_bytes: int = 0) -> None:
        """From now on the client is waited for, to take so many bytes or to send some."""
        patience_s = self.idle_s + size_bytes / limits.SLOWEST_BYTES_S
        self.timeout_s = AGAIN_S if self.expired else patience_s
        super().wait()

    def go_on(self) -> None:
        """The client has taken them, or sent some.

        Raises:
            UnavailableError: it has taken so long that the stream was ended.
            DafkaError: it may have no more, or send no more.
        """
        super().go_on()
        if self.expired:
            raise UnavailableError(IDLE, f"the {self.what} was ended: {self.why}")
        self._check()

    def close(self) -> None:
        """Ends the stream; may be repeated."""
        self._deadline = None
        self._watch.streams.discard(self)
        if not self.expired:
            self._watch.note_end(self.peer)
        self._watchdog.remove(self)
        self.end()

    def end(self) -> None:
        """Gives the permit back."""
        self.is_ended = True
        for each in self._held:
            each.close()

    def hold(self, held: Closing) -> None:
        """Has something be given back with the permit, in the watch's thread if need be."""
        self._held.append(held)

    @property
    def why(self) -> str:
        """Why it is ended."""
        return f"its client took nothing and sent nothing for {self.idle_s:g} s"


class StreamWatch:
    """The streams and calls that a service has under way, and the end of those that are idle.

    Attributes:
        addresses: of the socket for clients on this machine.
        streams: those under way, idle ones included.
    """

    def __init__(self) -> None:
        self.addresses: set[Address] = set()
        self.streams: set[WatchedStream] = set()
        self.watchdog = Watchdog()
        self._calls = Counter[str]()
        self._ended_at: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """Notes that a client's call is under way: its connection is not to be broken."""
        with self._lock:
            self._calls[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[peer] -= 1
                if not self._calls[peer]:
                    del self._calls[peer]
            self.note_end(peer)

    def note_end(self, peer: str) -> None:
        """A call or stream of a client has ended here; what it was sent may be on its way."""
        now = time.monotonic()
        with self._lock:
            self._ended_at = {
                each: ended_at
                for each, ended_at in self._ended_at.items()
                if ended_at > now - AGAIN_S
            } | {peer: now}

    def on_idle(self, stream: WatchedStream) -> None:
        """Gives the permit of an idle stream back, and ends the stream if it can (its thread)."""
        if not stream.is_ended:
            stream.end()
            _log.warning("the %s by %s is ended: %s", stream.what, stream.peer, stream.why)
        streams = list(self.streams)
        idle = sum(each.expired for each in streams)
        # Over the socket all clients have one name: nothing tells their connections apart.
        is_shared = (
            self._calls[stream.peer]
            or self._ended_at.get(stream.peer, -inf) > time.monotonic() - AGAIN_S
            or any(each.peer == stream.peer and not each.expired for each in streams)
        )
        if is_shared and idle <= limits.MAX_PARKED:
            return
        if stream.peer.startswith("unix"):
            break_connections(self.addresses, _accepted_at)
        else:
            break_connections({_address(stream.peer)}, socket.socket.getpeername)


def _accepted_at(connection: socket.socket) -> object:
    is_listening = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return None if is_listening else connection.getsockname()


def _address(peer: str) -> Address:
    """Of a peer like ``ipv4:127.0.0.1:5`` or ``ipv6:%5B::1%5D:5``."""
    host, _, port = urllib.parse.unquote(peer.partition(":")[2]).rpartition(":")
    return host.strip("[]").partition("%")[0], int(port)
