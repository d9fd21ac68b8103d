"""A message and its frames, as a fact the codec is held against."""

from __future__ import annotations

from typing import NamedTuple

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.protocol.messages import (
    Message,
)


class Vector(NamedTuple):
    """A message, its frames, and the layout they are in."""

    message: Message
    frames: list[bytes]
    layout: str

    @property
    def name(self) -> str:
        """For the names of tests; it is not unique."""
        return f"{self.layout}-{type(self.message).__name__}"


def c(message: Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], C_LAYOUT)


def rfc46(message: Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], RFC46)
