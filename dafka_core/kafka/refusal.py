"""Why a gateway does not do what a client asks: Kafka's error code, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class RefusedError(Exception):
    """Ends a part of a request; the client is told ``code``, and ``why`` where Kafka has room."""

    code: int
    why: str
