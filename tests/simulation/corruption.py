"""Frames: how large their records are, and how a broken peer or machine may send them.

Corrupted ones are such as no node can take for a message.

Other bytes in a value, or in a sequence, make a further message that is as valid as the one that
was sent: TCP's checksum guards against that, and nothing in the protocol does.
"""

import random
import struct

from dafka_core.protocol.codec import BATCH_NUMBERS_BYTES
from dafka_core.protocol.limits import RUN_BYTES

PACKED = (b"r", b"p")


def corrupted(chance: random.Random, frames: list[bytes]) -> tuple[str, list[bytes]] | None:
    """Return the kind of corruption, and the corrupted frames."""
    kind = chance.choice(("cut off", "too many frames", "lost frame", "version", "command"))
    header, rest = frames[0], frames[1:]
    match kind:
        case "cut off" if header[:1] in PACKED and len(rest) == 1:
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


def largest_record_bytes(frames: list[bytes]) -> int:
    """Return the size of a message's largest record; 0 without a valid record."""
    kind = frames[0][:1]
    if len(frames) == 2 and kind in PACKED:
        numbers = frames[0][-BATCH_NUMBERS_BYTES:]
        count, runs = (int.from_bytes(each, "big") for each in (numbers[8:12], numbers[-4:]))
        lengths = frames[1][RUN_BYTES * runs :]
        lengths = lengths[: 4 * min(count, len(lengths) // 4)]
        return max((each for (each,) in struct.iter_unpack("<I", lengths)), default=0)
    return len(frames[-1]) if len(frames) > 1 and kind in (b"M", b"D") else 0
