"""Limits and parsers of names that users write, and suggestions for misspelt ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.model.names import is_plain, octets_of, quoted, text_of, unescape

# Both are strings with a one-byte length, beyond which C nodes cut them; RFC 46 sets no limits.
MAX_TOPIC_BYTES: Final = 255
MAX_ADDRESS_BYTES: Final = 255
MAX_CLIENT_BYTES: Final = 128


def text_size_bytes(text: str) -> int:
    """Return the length of a name on the wire; raise ProtocolError if no bytes decode to it."""
    if text.isascii():
        return len(text)
    try:
        octets = octets_of(text)
    except UnicodeEncodeError:
        raise ProtocolError("a topic or address must not contain surrogates") from None
    # Escaped bytes that together are UTF-8 would arrive as another text.
    if text_of(octets) != text:
        raise ProtocolError("a topic or address must not escape bytes that are UTF-8")
    return len(octets)


def _check_name(what: str, max_bytes: int, name: str) -> None:
    if not name or text_size_bytes(name) > max_bytes:
        raise ProtocolError(f"{what} must have 1 to {max_bytes} bytes")
    if "\0" in name:
        raise ProtocolError(f"{what} must not contain a NUL byte")


check_topic: Final = partial(_check_name, "a topic", MAX_TOPIC_BYTES)
"""1 to 255 bytes without NUL, which ends a topic in the C layout.  RFC 46 allows any bytes."""

check_address: Final = partial(_check_name, "an address", MAX_ADDRESS_BYTES)
"""1 to 255 bytes without NUL, since an address is the topic of some messages.  RFC 46: a UUID."""


def check_node_address(address: str) -> None:
    """Check a node's own address, which beacons carry as printable ASCII."""
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


def is_client_name(text: str) -> bool:
    """Return True for a client's name: up to 128 bytes of visible characters, or empty."""
    return is_plain(text) and len(text.encode()) <= MAX_CLIENT_BYTES


parse_topic: Final = partial(_parse_name, check_topic)
parse_partition: Final = partial(_parse_name, check_address)
"""Parse an escaped name within the limits of the wire; raise ValueError for any other value."""


_FOLDED: Final = str.maketrans("", "", "-_. ")  # they don't distinguish names, nor does case
_LEAST: Final = 3  # minimum length of a name to compare; each shorter one is near to all others
_MOST_LISTED: Final = 10  # names listed if none is near
_MOST_COMPARED: Final = 64  # characters compared of each name
_NEAR: Final = 0.75  # share of equal letters in a misspelling: one wrong letter of four
_NEAR_IN_SHORT: Final = 0.66  # in names of three letters: one, too


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` is probably a misspelling of, or None.

    A misspelling has one wrong letter for each four, or lacks the end of the name.
    """
    wanted = _fold(name)
    if len(wanted) < _LEAST:
        return None
    names = {_fold(each): each for each in known}
    share = _NEAR if len(wanted) > _LEAST else _NEAR_IN_SHORT
    near = get_close_matches(wanted, names, 1, share)
    near += sorted((each for each in names if each.startswith(wanted)), key=len)
    return names[near[0]] if near else None


def nearest(name: str, known: Collection[str]) -> str:
    """Suggest the nearest known name, or list all of them."""
    near = nearest_name(name, known)
    return f"did you mean {near!r}?" if near else f"must be one of {', '.join(known)}"


def what_there_is(name: str, known: Collection[str], what: str) -> str:
    """Suggest the nearest existing name for a missing one, or list some; ``what`` is plural."""
    if near := nearest_name(name, known):
        return f"did you mean {quoted(near)}?"
    if not known:
        return f"there are no {what}"
    some = ", ".join(map(quoted, sorted(known)[:_MOST_LISTED]))
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    return f"there are {some}{more}"


def _fold(name: str) -> str:
    return name.lower().translate(_FOLDED)[:_MOST_COMPARED]
