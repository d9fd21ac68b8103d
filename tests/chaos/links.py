"""A cable in user space that is long, or refuses connections.

    links.py NEAR FAR DELAY_S [FIRST-LAST]  passes frames between two interfaces with a delay;
                                            with ports, hosts beyond FAR may connect only to
                                            these on the side of NEAR, as behind a NAT
    links.py INTERFACE                      makes an interface send frames as on a wire

It needs neither netem nor packet filters in the kernel.
"""

import array
import contextlib
import fcntl
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

EVERY_PROTOCOL: Final = 3
OUTGOING: Final = 4
FRAME_BYTES: Final = 1 << 16

SIOCETHTOOL: Final = 0x8946
OFFLOADS: Final = (0x17, 0x1F, 0x24, 0x2C)
"""Checksums and segmentation left to the card, which does not exist."""

IPV4: Final = b"\x08\x00"
TCP: Final = 6
SYN, ACK = 2, 16


def as_on_a_wire(interface: str) -> None:
    """Make an interface compute checksums, and send frames of normal size only."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):  # not every kernel has each of them
                fcntl.ioctl(control, SIOCETHTOOL, request)


def connects_to(frame: bytes) -> int | None:
    """Return the port if the frame opens a connection."""
    if len(frame) < 24 or frame[12:14] != IPV4 or frame[23] != TCP:
        return None
    start = 14 + 4 * (frame[14] & 15)
    if len(frame) < start + 14 or frame[start + 13] & (SYN | ACK) != SYN:
        return None
    return int.from_bytes(frame[start + 2 : start + 4])


class Direction:
    def __init__(
        self, source: str, target: str, delay_s: float, passes: Callable[[bytes], bool]
    ) -> None:
        self.source, self._target = _opened(source), _opened(target)
        self._delay_s = delay_s
        self._passes = passes
        self._under_way: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float:
        return self._under_way[0][0] if self._under_way else float("inf")

    def take(self) -> None:
        try:
            frame, origin = self.source.recvfrom(FRAME_BYTES)
        except OSError:  # the cable is pulled
            return
        if origin[2] != OUTGOING and self._passes(frame):
            self._under_way.append((time.monotonic() + self._delay_s, frame))

    def deliver(self) -> None:
        while self.due <= time.monotonic():
            with contextlib.suppress(OSError):
                self._target.send(self._under_way.popleft()[1])


def _opened(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
    opened.bind((interface, 0))
    return opened


def run(near: str, far: str, delay_s: float, let_in: range | None) -> None:
    def lets_in(frame: bytes) -> bool:
        port = None if let_in is None else connects_to(frame)
        return port is None or let_in is None or port in let_in

    ways = (Direction(near, far, delay_s, lambda _: True), Direction(far, near, delay_s, lets_in))
    by_source = {way.source: way for way in ways}
    print("passing", flush=True)
    while True:
        wait_s = min(way.due for way in ways) - time.monotonic()
        limited = None if wait_s == float("inf") else max(0.0, wait_s)
        for source in select.select(list(by_source), [], [], limited)[0]:
            by_source[source].take()
        for way in ways:
            way.deliver()


def main(arguments: Sequence[str]) -> None:
    if len(arguments) == 1:
        as_on_a_wire(arguments[0])
        return
    near, far, delay_s, *ports = arguments
    first, _, last = ports[0].partition("-") if ports else ("", "", "")
    run(near, far, float(delay_s), range(int(first), int(last) + 1) if ports else None)


if __name__ == "__main__":
    main(sys.argv[1:])
