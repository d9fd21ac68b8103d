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


def both(message: m.Message, id_: str, topic: str, fields: str, *content: str) -> list[Vector]:
    """Return a message in both layouts, which differ in what precedes the fields."""
    return [
        c(message, f"{id_} {topic} 00 01 {fields}", *content),
        rfc46(message, f"{id_} {topic}", f"aaa5 {id_} 01 {fields}", *content),
    ]
