"""A link that refuses connections recognizes them."""

import struct

from tests.chaos.links import ACK, IPV4, SYN, TCP, connects_to

UDP = 17
OPTIONS = bytes(8)


def frame(kind: int, flags: int, port: int, options: bytes = b"", protocol: bytes = IPV4) -> bytes:
    """Return a frame from port 5 to ``port``."""
    header = struct.pack("!BxHxxxxxBxx8x", 0x45 + len(options) // 4, 40 + len(options), kind)
    rest = struct.pack("!HHIIBBHHH", 5, port, 1, 0, 0x50, flags, 1024, 0, 0)
    return bytes(12) + protocol + header + options + rest


def test_the_first_frame_of_a_connection_is_told_from_others() -> None:
    assert connects_to(frame(TCP, SYN, 7070)) == 7070
    assert connects_to(frame(TCP, SYN, 7070, OPTIONS)) == 7070
    assert connects_to(frame(TCP, SYN | ACK, 7070)) is None  # an answer
    assert connects_to(frame(TCP, ACK, 7070)) is None
    assert connects_to(frame(UDP, SYN, 7070)) is None
    assert connects_to(frame(TCP, SYN, 7070, protocol=b"\x08\x06")) is None
    for size in range(14 + 34):
        assert connects_to(frame(TCP, SYN, 7070)[:size]) is None
