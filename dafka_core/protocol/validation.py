"""What a message's fields must be, so that no message can be made that is not valid."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import (
    MAX_ADDRESS_BYTES,
    MAX_BATCH_COUNT,
    MAX_HELLO_BYTES,
    MAX_LOCATION_BYTES,
    MAX_LOCATIONS,
    MAX_REPLY_ENTRIES,
    MAX_SEQUENCE,
    MAX_TOPIC_BYTES,
)
from dafka_core.records import NO_VERSION, Transaction


def text_size_bytes(text: str) -> int:
    """How long a topic or address is on the wire.

    Raises:
        ProtocolError: there are no octets that are read as this text.
    """
    if text.isascii():
        return len(text)
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ProtocolError("a topic or address must not contain surrogates") from None
    # Escaped octets that together are UTF-8 would arrive as another text.
    if octets.decode("utf-8", "surrogateescape") != text:
        raise ProtocolError("a topic or address must not escape octets that are UTF-8")
    return len(octets)


def check_topic(topic: str) -> None:
    """Raises ProtocolError unless ``topic`` has 1 to 255 octets and no NUL (the delimiter)."""
    if not topic or text_size_bytes(topic) > MAX_TOPIC_BYTES:
        raise ProtocolError(f"a topic must have 1 to {MAX_TOPIC_BYTES} bytes")
    if "\0" in topic:
        raise ProtocolError("a topic must not contain a NUL byte")


def check_address(address: str) -> None:
    """Raises ProtocolError unless ``address`` has 1 to 255 octets and no NUL."""
    if not address or text_size_bytes(address) > MAX_ADDRESS_BYTES:
        raise ProtocolError(f"an address must have 1 to {MAX_ADDRESS_BYTES} bytes")
    if "\0" in address:
        raise ProtocolError("an address must not contain a NUL byte")


def check_sequence(sequence: int) -> None:
    """Raises ProtocolError unless ``sequence`` fits a signed 64-bit offset."""
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise ProtocolError(f"a sequence must lie in 0 to {MAX_SEQUENCE}")


def check_end(end: int) -> None:
    """Raises ProtocolError unless ``end`` is 0 or can come after a sequence."""
    if not 0 <= end <= MAX_SEQUENCE + 1:
        raise ProtocolError(f"an end must lie in 0 to {MAX_SEQUENCE + 1}")


def check_topics(topics: tuple[str, ...]) -> None:
    """Raises ProtocolError unless all are topics and fit into one message."""
    for topic in topics:
        check_topic(topic)
    if sum(4 + text_size_bytes(topic) for topic in topics) > MAX_HELLO_BYTES // 2:
        raise ProtocolError(f"a message's topics have at most {MAX_HELLO_BYTES // 2} bytes")


def check_locations(locations: tuple[str, ...]) -> None:
    """Raises ProtocolError unless these can be the URIs of a store's endpoints."""
    if not 1 <= len(locations) <= MAX_LOCATIONS:
        raise ProtocolError(f"a store has 1 to {MAX_LOCATIONS} endpoints")
    for location in locations:
        if not 1 <= text_size_bytes(location) <= MAX_LOCATION_BYTES:
            raise ProtocolError(f"an endpoint has 1 to {MAX_LOCATION_BYTES} bytes")
        if not location.isascii() or not location.isprintable():
            raise ProtocolError("an endpoint must be a URI, of printable ASCII")


def check_query(query: int) -> None:
    """Raises ProtocolError unless ``query`` is an unsigned 64-bit number."""
    if not 0 <= query < 2**64:
        raise ProtocolError("a query must be an unsigned 64-bit number")


def check_part(part: int, parts: int, entry_count: int) -> None:
    """Raises ProtocolError unless a reply can have this part, of so many, with so many entries."""
    if not 0 <= part < parts < 2**32:
        raise ProtocolError("a part must be below the number of parts, an unsigned 32-bit number")
    if entry_count > MAX_REPLY_ENTRIES:
        raise ProtocolError(f"a reply has at most {MAX_REPLY_ENTRIES} entries")


def check_batch(sequence: int, count: int) -> None:
    """Raises ProtocolError unless records can have these sequences."""
    if not 1 <= count <= MAX_BATCH_COUNT:
        raise ProtocolError(f"a run has 1 to {MAX_BATCH_COUNT} records")
    check_sequence(sequence)
    check_sequence(sequence + count - 1)


def check_transaction(sequence: int, count: int, transaction: Transaction | None) -> None:
    """Raises ProtocolError unless records of these sequences can all be of the unit."""
    if transaction is None:
        return
    if not NO_VERSION <= transaction.version <= MAX_SEQUENCE:
        raise ProtocolError(f"a unit's number must lie in {NO_VERSION} to {MAX_SEQUENCE}")
    check_end(transaction.end)
    if not 0 <= transaction.start <= sequence or sequence + count > transaction.end:
        raise ProtocolError("a run must lie within its unit")


def unpack_batch(
    count: int, value: bytes | memoryview
) -> tuple[npt.NDArray[np.uint32], memoryview]:
    """The lengths and the records of a run.

    Raises:
        ProtocolError: the lengths do not add up.
    """
    if len(value) < 4 * count:
        raise ProtocolError("a run is shorter than its lengths")
    lengths = np.frombuffer(value, "<u4", count)
    records = memoryview(value)[4 * count :]
    if int(lengths.sum(dtype=np.uint64)) != len(records):
        raise ProtocolError("the lengths of a run do not add up to its records")
    return lengths, records
