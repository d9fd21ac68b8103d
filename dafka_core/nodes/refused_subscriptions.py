"""Subscriptions that keys do not allow, until ZeroMQ takes them back."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Final

MOST_REFUSED: Final = 100_000
"""Subscriptions that are told apart; anybody who is let in may ask for anything."""


class RefusedSubscriptions:
    """Tells what ends with a connection from what was never granted to it.

    When a connection ends, ZeroMQ takes back all that was asked for by it, and does not say whose
    that was.  What was refused, taken for another node's, would end what that one is sent.  Where
    several had asked for the same, the first who ends counts for the one who was refused.
    """

    def __init__(self) -> None:
        self._prefixes = Counter[bytes]()
        self._is_full = False

    def __len__(self) -> int:
        return len(self._prefixes)

    def note(self, prefix: bytes) -> None:
        """Somebody was refused what begins so."""
        self._is_full = self._is_full or len(self._prefixes) >= MOST_REFUSED
        if not self._is_full:
            self._prefixes[_digest(prefix)] += 1

    def end(self, prefix: bytes) -> bool:
        """ZeroMQ takes this back; whether it had been refused, as far as is known.

        When there were too many, all counts as refused: others are told more than they need to be.
        """
        digest = _digest(prefix)
        count = self._prefixes.pop(digest, 0)
        if count > 1:
            self._prefixes[digest] = count - 1
        was_refused = count > 0 or self._is_full
        self._is_full = self._is_full and bool(self._prefixes)
        return was_refused


def _digest(prefix: bytes) -> bytes:
    """What a prefix is told from others by: it may have thousands of octets."""
    return blake2b(prefix, digest_size=16).digest()
