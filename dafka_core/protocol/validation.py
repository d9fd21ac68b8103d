"""The limits of a message's fields: each check raises ProtocolError with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final

from dafka_core.epochs import Epoch, History
from dafka_core.errors import ProtocolError
from dafka_core.names import octets_of, text_of, unescape
from dafka_core.protocol import limits
from dafka_core.records import NO_VERSION, Transaction


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


def check_number(what: str, least: int, most: int, number: int) -> None:
    """Raises ProtocolError unless ``least <= number <= most``."""
    if not least <= number <= most:
        raise ProtocolError(f"{what} must lie in {least} to {most}")


check_topic: Final = partial(_check_name, "a topic", limits.MAX_TOPIC_BYTES)
"""1 to 255 octets without NUL, which ends a topic in the C layout.  RFC 46 allows any octets."""

check_address: Final = partial(_check_name, "an address", limits.MAX_ADDRESS_BYTES)
"""1 to 255 octets without NUL, since an address is the topic of some messages.  RFC 46: a UUID."""


def check_node_address(address: str) -> None:
    """A node's own address, as beacons carry it: one that everybody can write."""
    check_address(address)
    if not (address.isascii() and address.isprintable()):
        raise ProtocolError("a node's address must be printable ASCII")


check_sequence: Final = partial(check_number, "a sequence", 0, limits.MAX_SEQUENCE)
"""The offset of a record."""

check_end: Final = partial(check_number, "an end", 0, limits.MAX_SEQUENCE + 1)
"""The offset after a record, or 0."""

check_fetch_count: Final = partial(check_number, "a count", 0, limits.MAX_FETCH_COUNT)
check_query: Final = partial(check_number, "a query", 0, 2**64 - 1)
check_record_size: Final = partial(check_number, "a record's size", 0, limits.MAX_SEQUENCE)
_check_version: Final = partial(check_number, "a version", NO_VERSION, limits.MAX_SEQUENCE)


def check_topics(topics: tuple[str, ...]) -> None:
    """Raises ProtocolError unless all are topics and fit into one message."""
    for topic in topics:
        check_topic(topic)
    if sum(4 + text_size_bytes(topic) for topic in topics) > limits.MAX_HELLO_BYTES // 2:
        raise ProtocolError(f"a message's topics have at most {limits.MAX_HELLO_BYTES // 2} bytes")


def check_locations(locations: tuple[str, ...]) -> None:
    """Raises ProtocolError unless these can be the URIs of a store's endpoints."""
    if not 1 <= len(locations) <= limits.MAX_LOCATIONS:
        raise ProtocolError(f"a store has 1 to {limits.MAX_LOCATIONS} endpoints")
    for location in locations:
        if not 1 <= text_size_bytes(location) <= limits.MAX_LOCATION_BYTES:
            raise ProtocolError(f"an endpoint has 1 to {limits.MAX_LOCATION_BYTES} bytes")
        if not location.isascii() or not location.isprintable():
            raise ProtocolError("an endpoint must be a URI, of printable ASCII")


@lru_cache(maxsize=1024)  # many messages in a row are of one life
def check_epoch(epoch: Epoch | None) -> None:
    """Raises ProtocolError unless a producer can have had such a life."""
    if epoch is not None:
        check_number("an epoch", 1, 2**32 - 1, epoch.number)
        check_sequence(epoch.start)


def check_history(history: History) -> None:
    """Raises ProtocolError unless the epochs ascend."""
    steps = pairwise(history)
    if any(one.life >= next_.life or one.start >= next_.start for one, next_ in steps):
        raise ProtocolError("the epochs of a history ascend, and so do their first offsets")


def check_batch(
    sequence: int, count: int, transaction: Transaction | None, epoch: Epoch | None
) -> None:
    """Raises ProtocolError unless a message can have these records."""
    if not 1 <= count <= limits.MAX_BATCH_COUNT:
        raise ProtocolError(f"a batch has 1 to {limits.MAX_BATCH_COUNT} records")
    check_number("a sequence", 0, limits.MAX_SEQUENCE + 1 - count, sequence)
    check_epoch(epoch)
    if epoch is not None and epoch.start > sequence:
        raise ProtocolError("a batch must lie within its epoch")
    if transaction is None:
        return
    _check_version(transaction.version)
    check_end(transaction.end)
    if not 0 <= transaction.start <= sequence or sequence + count > transaction.end:
        raise ProtocolError("a batch must lie within its transaction")


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
