"""A message and its frames, as a fact the codec is held against."""

from __future__ import annotations

from typing import NamedTuple

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.protocol import messages as m


class Vector(NamedTuple):
    """A message, its frames, and the layout they are in."""

    message: m.Message
    frames: list[bytes]
    layout: str

    @property
    def name(self) -> str:
        """For the names of tests; it is not unique."""
        return f"{self.layout}-{type(self.message).__name__}"


def c(message: m.Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], C_LAYOUT)


def rfc46(message: m.Message, *frames: str) -> Vector:
    return Vector(message, [bytes.fromhex(frame) for frame in frames], RFC46)
