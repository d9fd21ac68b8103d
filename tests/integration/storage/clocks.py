"""A clock for logs."""

from __future__ import annotations


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_us = 1_000

    def __call__(self) -> int:
        return self.now_us
