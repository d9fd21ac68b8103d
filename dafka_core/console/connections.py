"""The console's connections: those that ask for nothing shut nobody out."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 256
"""At one time.  A further one takes the place of a connection without a request; if there is none,
its request is refused."""

REQUEST_S: Final = 10.0
"""Within this time of connecting, or of the last answer, a whole request has to be there."""


class Connection(H11Protocol):
    """A connection that ends when it takes too long to ask.

    Attributes:
        ends_s: when it ends if it has not asked by then, on the loop's clock; never while it is
            answered.
    """

    ends_s = inf
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: there is a place for it, if another one does not ask."""
        super().connection_made(transport)
        if len(self.connections) >= MOST_CONNECTIONS:
            others = (each for each in self.connections if isinstance(each, Connection))
            oldest = min(others, key=lambda each: each.ends_s)
            if oldest.ends_s < inf:
                oldest.end()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._stop_watching()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Octets have come, or an answer is complete: whether a request is there, too."""
        super().handle_events()
        self._watch()

    def end(self) -> None:
        """Ends it at once."""
        self._stop_watching()
        self.transport.abort()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.end)
            self.ends_s = self._timer.when()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.ends_s = None, inf
