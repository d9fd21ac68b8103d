"""Frames as a broken peer or machine may send them: such as no node can take for a message.

Other octets in a value, or in a sequence, make another message that is as valid as the one that
was sent: TCP's checksum guards against that, and nothing in the protocol does.
"""

from __future__ import annotations

import random

_PACKED = (b"R", b"P")


def corrupted(chance: random.Random, frames: list[bytes]) -> tuple[str, list[bytes]] | None:
    """How the frames are corrupted, and what they are then."""
    kind = chance.choice(("cut off", "too many frames", "lost frame", "version", "command"))
    header, rest = frames[0], frames[1:]
    match kind:
        case "cut off" if header[:1] in _PACKED and len(rest) == 1:
            return kind, [header, rest[0][: -chance.randint(1, len(rest[0]))]]
        case "cut off" if not rest or rest[0][:2] != b"\xaa\xa5":
            return kind, [header[: -chance.randint(1, min(8, len(header) - 2))], *rest]
        case "cut off":
            return kind, [header, rest[0][: -chance.randint(1, 4)], *rest[1:]]
        case "too many frames":
            return kind, [*frames, *[b"more"] * 3]
        case "lost frame" if rest:
            return kind, frames[:-1] if rest[0][:2] != b"\xaa\xa5" else [*rest]
        case "version" if not rest or rest[0][:2] != b"\xaa\xa5":
            position = header.index(b"\0", 1) + 1
            return kind, [header[:position] + b"\x09" + header[position + 1 :], *rest]
        case "command":
            return kind, [b"?" + header[1:], *rest]
    return None
