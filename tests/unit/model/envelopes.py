"""Envelopes as docs/wire.md has them: its vectors, and a reader written from the page alone."""

import re
from pathlib import Path

from hypothesis import strategies as st

PAGE = Path(__file__).parents[3] / "docs/wire.md"

Parts = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""A record's key, value and headers."""

VALUES = st.none() | st.binary(max_size=20) | st.binary(min_size=100, max_size=300)
NAMES = st.text(max_size=5)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=150)), max_size=4).map(tuple)
PARTS = st.tuples(st.none() | st.binary(max_size=150), VALUES, HEADERS)
BEGUN = st.sampled_from([b"", b"\xc1", b"\xc1DFK", b"\xc1DFK\x01", b"\xc1DFK\x01\x03\x02"])
MISTAKABLE = st.builds(bytes.__add__, BEGUN, st.binary(max_size=12))
"""Values that look like envelopes, and perhaps are."""


def rows(first_cell: str) -> list[list[str]]:
    """Return the cells of the page's table whose head begins with this cell."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition(f"\n| {first_cell} |")
    lines = table.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def octets(cell: str) -> bytes | None:
    """Decode a cell."""
    if cell in ("null", "empty"):
        return None if cell == "null" else b""
    longer = re.sub(r"(\w\w)\*(\d+)", lambda found: found[1] * int(found[2]), cell)
    return bytes.fromhex(longer)


def vectors() -> list[tuple[Parts, bytes]]:
    """Records and their contents."""
    found: list[tuple[Parts, bytes]] = []
    for key, value, listed, content in rows("key | value"):
        pairs = [header.split("=") for header in listed.split(", ") if header]
        headers = tuple(((octets(name) or b"").decode(), octets(of)) for name, of in pairs)
        found.append(((octets(key), octets(value), headers), octets(content) or b""))
    return found


def values_only() -> list[bytes]:
    """Contents that are no envelopes."""
    return [octets(content) or b"" for content, _ in rows("content")]


def opened(content: bytes) -> Parts:
    """Return a record's key, value and headers, byte by byte."""
    try:
        return _envelope(content)
    except (IndexError, ValueError):
        return None, content, ()


def _envelope(content: bytes) -> Parts:
    if content[:5] != b"\xc1DFK\x01" or content[5] > 3:
        raise ValueError(content)
    flags = content[5]
    size, at = _varint(content, 6)
    if at > 8 or at + size > len(content):
        raise ValueError(content)
    head, lengths = content[: at + size], []
    while at < len(head):
        start = at
        length, at = _varint(head, at)
        if at - start > 5:
            raise ValueError(content)
        lengths.append(length)
    rest = content[at:]

    def part(length: int) -> bytes:
        nonlocal rest
        taken, rest = rest[:length], rest[length:]
        if len(taken) < length:
            raise ValueError(content)
        return taken

    key = part(lengths.pop(0)) if flags & 1 else None
    value = part(lengths.pop(0)) if flags & 2 else None
    headers = []
    while lengths:
        name = part(lengths.pop(0)).decode("utf-8", "replace")
        of = lengths.pop(0)
        headers.append((name, part(of - 1) if of else None))
    if rest or (flags == 2 and not headers and (value or b"")[:4] != b"\xc1DFK"):
        raise ValueError(content)
    return key, value, tuple(headers)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    start = at
    while data[at] > 0x7F:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    if at > start and data[at] == 0:
        raise ValueError("not the shortest one")
    return number | data[at] << shift, at + 1
