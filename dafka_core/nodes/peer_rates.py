"""How fast each peer sends: one that is too fast is left alone for a while (docs/security.md).

Nothing is thrown away here.  What comes meanwhile waits in ZeroMQ's queue, then in TCP's windows
and in the peer's own queue, which drops what is above its high-water mark: that is fetched later.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Final

AHEAD_S: Final = 1.0
"""So much of its rate a peer may send at once: records come in bursts."""

MESSAGE_BYTES: Final = 64
"""What a message costs at least, so that many small ones are not free."""

REQUEST_BYTES: Final = 4 << 10
"""What one without records costs: it is 50 us of work, in which more octets of records are done."""

WAITING_MESSAGES: Final = 1_000
"""Messages of one peer that wait in this process while it is left alone: of ours at most 32 MiB."""

SAY_AGAIN_S: Final = 60.0

_log = logging.getLogger("dafka.mesh")


class PeerRates:
    """Counts what peers send, and says whom to leave alone, and until when.

    Args:
        bytes_per_s: of each peer; 0: there is no limit.

    Attributes:
        paused: who is left alone, by endpoint, and until when.
        pause_count: how often somebody was.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.paused: dict[str, float] = {}
        self.pause_count = 0
        self._bytes_per_s = bytes_per_s
        self._even_at: dict[str, float] = {}  # when a peer is at its rate if it sends nothing more
        self._said_at = -inf

    def add(self, now: float, endpoint: str, node: str, size_bytes: int) -> bool:
        """A peer has sent something; whether it is to be left alone from now on."""
        if not self._bytes_per_s:
            return False
        even_at = max(now, self._even_at.get(endpoint, now)) + size_bytes / self._bytes_per_s
        self._even_at[endpoint] = even_at
        if even_at <= now + AHEAD_S:
            return False
        self.paused[endpoint] = even_at - AHEAD_S
        self.pause_count += 1
        if now - self._said_at >= SAY_AGAIN_S:
            self._said_at = now
            _log.warning(
                "%(node)s at %(endpoint)s sends more than %(bytes_per_s)d bytes a second, option "
                "max_peer_rate_bytes: it is left alone until that is made up for. Peers were left "
                "alone %(count)d times so far",
                {
                    "node": node,
                    "endpoint": endpoint,
                    "bytes_per_s": self._bytes_per_s,
                    "count": self.pause_count,
                },
                extra={"event": "peer_left_alone"},
            )
        return True

    def take_due(self, now: float) -> list[str]:
        """Who is not left alone any more."""
        due = [endpoint for endpoint, until in self.paused.items() if until <= now]
        for endpoint in due:
            del self.paused[endpoint]
        return due

    def deadline(self) -> float:
        """When somebody is not left alone any more; ``inf`` if nobody is."""
        return min(self.paused.values(), default=inf)

    def forget(self, endpoint: str) -> None:
        """A connection is closed; a new one begins anew."""
        self.paused.pop(endpoint, None)
        self._even_at.pop(endpoint, None)
