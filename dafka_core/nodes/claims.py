"""Whose node is at an endpoint: towers pass on what any node says of where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dafka_core.errors import ProtocolError

PROOF_S: Final = 2.0
"""How long the owner of a key that was announced at an endpoint has for proving it, before another
one has a turn: a connection takes a few milliseconds."""


@dataclass(slots=True)
class _Claim:
    key: str
    since: float
    is_proved: bool = False  # there is a connection to the owner of the key


class Claims:
    """The keys of the nodes at endpoints.

    Who is connected to with his key is there.  Else those who were announced take turns, so that
    nobody keeps another one from being connected to.
    """

    def __init__(self) -> None:
        self._at: dict[str, _Claim] = {}

    def __len__(self) -> int:
        return len(self._at)

    def key_at(self, endpoint: str) -> str:
        """Whose node is there; empty if none was announced."""
        claim = self._at.get(endpoint)
        return "" if claim is None else claim.key

    def take(self, now: float, endpoint: str, key: str) -> bool:
        """Somebody was announced at an endpoint; whether he takes another one's place.

        Raises:
            ProtocolError: another one has proved that he is there, or may still do so.
        """
        claim = self._at.setdefault(endpoint, _Claim(key, now))
        if claim.key == key:
            return False
        if claim.is_proved or now < claim.since + PROOF_S:
            raise ProtocolError("another node was announced at that endpoint")
        self._at[endpoint] = _Claim(key, now)
        return True

    def prove(self, endpoint: str, *, is_proved: bool) -> None:
        """A connection was made with the key that was expected there, or has ended."""
        if (claim := self._at.get(endpoint)) is not None:
            claim.is_proved = is_proved

    def forget(self, endpoint: str) -> None:
        """There is no node at an endpoint any more."""
        self._at.pop(endpoint, None)
