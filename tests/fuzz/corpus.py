"""Octets that reach what others do not, a file for each target with one entry in each line."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parent / "entries"

MAX_BYTES: Final = 512
"""Longer entries are not kept: what they reach a shorter one reaches, too, but for limits."""


def read(target: str) -> list[bytes]:
    """A target's entries."""
    return [bytes.fromhex(line) for line in _path(target).read_text().splitlines()]


def least(target: Callable[[bytes], None], entries: Iterable[bytes]) -> list[bytes]:
    """Return the inputs that cover a branch which no shorter one covers."""
    kept: list[bytes] = []
    known: set[object] = set()
    for entry in sorted(entries, key=lambda each: (len(each), each)):
        if 0 < len(entry) <= MAX_BYTES and (steps := _steps(target, entry)) - known:
            known |= steps
            kept.append(entry)
    return kept


def _steps(target: Callable[[bytes], None], entry: bytes) -> set[object]:
    found: set[object] = set()

    def trace(frame: FrameType, _event: str, _value: Any) -> Any:
        if "/dafka_" not in frame.f_code.co_filename:
            return None
        last = frame.f_lineno

        def step(frame: FrameType, event: str, value: Any) -> Any:
            nonlocal last
            # Errors differ by where they come from.
            found.add((frame.f_code, last, frame.f_lineno, event == "exception" and value[0]))
            last = frame.f_lineno
            return step

        return step

    sys.settrace(trace)
    try:
        target(entry)
    finally:
        sys.settrace(None)
    return found


def write(target: str, entries: Iterable[bytes]) -> int:
    """Replace a target's entries; return their number."""
    kept = sorted(entries)
    _path(target).write_text("".join(f"{each.hex()}\n" for each in kept))
    return len(kept)


def _path(target: str) -> Path:
    return DIRECTORY / f"{target}.txt"
