"""The limits of a message's fields: each check raises ProtocolError with what would be right."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import pairwise
from typing import Final

from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import Epoch, History
from dafka_core.model.name_limits import check_topic, text_size_bytes
from dafka_core.model.records import NO_VERSION, Transaction
from dafka_core.protocol import limits


def check_number(what: str, least: int, most: int, number: int) -> None:
    """Raises ProtocolError unless ``least <= number <= most``."""
    if not least <= number <= most:
        raise ProtocolError(f"{what} must lie in {least} to {most}")


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
