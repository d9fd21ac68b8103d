"""The limits of topics and addresses on the wire, and the parsers of names that users write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.model.names import octets_of, text_of, unescape

MAX_TOPIC_BYTES: Final = 255
"""RFC 46 sets none, but ``subject`` is a string with a one-octet length: C nodes cut it."""

MAX_ADDRESS_BYTES: Final = 255
"""An address is a string with a one-octet length, too.  Those of C nodes are 32 octets."""


def text_size_bytes(text: str) -> int:
    """How long a topic or address is on the wire.

    Raises:
        ProtocolError: no octets are read as this text.
    """
    if text.isascii():
        return len(text)
    try:
        octets = octets_of(text)
    except UnicodeEncodeError:
        raise ProtocolError("a topic or address must not contain surrogates") from None
    # Escaped octets that together are UTF-8 would arrive as another text.
    if text_of(octets) != text:
        raise ProtocolError("a topic or address must not escape octets that are UTF-8")
    return len(octets)


def _check_name(what: str, max_bytes: int, name: str) -> None:
    if not name or text_size_bytes(name) > max_bytes:
        raise ProtocolError(f"{what} must have 1 to {max_bytes} bytes")
    if "\0" in name:
        raise ProtocolError(f"{what} must not contain a NUL byte")


check_topic: Final = partial(_check_name, "a topic", MAX_TOPIC_BYTES)
"""1 to 255 octets without NUL, which ends a topic in the C layout.  RFC 46 allows any octets."""

check_address: Final = partial(_check_name, "an address", MAX_ADDRESS_BYTES)
"""1 to 255 octets without NUL, since an address is the topic of some messages.  RFC 46: a UUID."""


def check_node_address(address: str) -> None:
    """A node's own address, as beacons carry it: one that everybody can write."""
    check_address(address)
    if not (address.isascii() and address.isprintable()):
        raise ProtocolError("a node's address must be printable ASCII")


def _parse_name(check: Callable[[str], None], value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    try:
        check(name := unescape(value))
    except ProtocolError as error:
        raise ValueError(error.reason) from None
    return name


parse_topic: Final = partial(_parse_name, check_topic)
parse_partition: Final = partial(_parse_name, check_address)
"""A name in the limits of the wire, which users write escaped; ValueError for any other value."""
