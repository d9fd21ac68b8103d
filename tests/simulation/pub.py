"""A node's XPUB socket in the simulation."""

import zmq

from tests.simulation.network import Link


class Pub:
    """What ``Subscribers`` and ``send_packed`` ask of an XPUB socket in manual mode."""

    def __init__(self) -> None:
        self.link: Link | None = None  # the connection of the last subscription
        self.frames: list[bytes] = []

    def set(self, option: int, prefix: bytes) -> None:
        """Changes what the peer is sent."""
        if self.link is None:
            return
        prefixes = dict.fromkeys(self.link.prefixes)
        if option == zmq.SUBSCRIBE:
            prefixes[prefix] = None
        else:
            prefixes.pop(prefix, None)
        self.link.prefixes = tuple(prefixes)

    def send(self, frame: bytes, flags: int = 0) -> None:
        self.frames.append(frame)
