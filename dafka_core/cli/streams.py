"""The process's standard streams, whatever its parent has made of them.

A stream may be closed, its disk full or its reader gone.  Nothing of that is lost in silence, but
for the words on standard error when nobody takes them: the exit code tells then.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from errno import EBADF
from typing import TYPE_CHECKING, Final, TextIO

from dafka_core.errors import DafkaError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INPUT, _OUTPUT, _ERRORS = range(3)

_AS_CLOSED: Final = {_INPUT: os.O_WRONLY, _OUTPUT: os.O_RDONLY, _ERRORS: os.O_WRONLY}
"""How a closed stream's number is taken: reading from it and writing results to it still fail."""


class OutputClosedError(Exception):
    """The process that read standard output has closed it."""


@dataclass(eq=False)
class StreamError(DafkaError):
    """A standard stream that cannot be used."""

    sentence = "standard {stream} cannot be {used}: {why}"
    stream: str
    used: str
    why: str


def settle() -> None:
    """Takes the numbers of closed streams, and has Python write through what watches failures.

    Must come before anything else opens a file, which would get a closed stream's number: a
    command would then take its own sockets for its input.
    """
    for number, mode in _AS_CLOSED.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free: this one
    results = io.BufferedWriter(_Output(_OUTPUT, "w", closefd=False))
    before: TextIO | None = sys.stdout  # None if it was closed when Python started
    sys.stdout = io.TextIOWrapper(
        results,
        before.encoding if before else "utf-8",
        before.errors if before else None,
        line_buffering=results.isatty(),
    )
    # Without a buffer: a signal that ends a write would have it written again.
    sys.stderr = io.TextIOWrapper(
        _Errors(_ERRORS, "w", closefd=False),
        sys.stdout.encoding,
        "backslashreplace",
        write_through=True,
    )


def wait_for_input() -> None:
    """Waits until some of standard input can be read, or its end."""
    select.select([_INPUT], [], [])


def read_input(most_bytes: int, wait: Callable[[], None] = wait_for_input) -> bytes:
    """Up to ``most_bytes`` of standard input, as soon as there are any; empty at its end.

    Raises:
        StreamError: it is closed, or cannot be read.
    """
    while True:
        try:
            if most_bytes:
                wait()
            return os.read(_INPUT, most_bytes)
        except BlockingIOError:
            continue
        except OSError as error:
            raise StreamError("input", "read", _why(error)) from None


class _Output(io.FileIO):
    """Standard output: no write is cut short, and the first that fails is the last."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # it does not block, and is full
                select.select([], [self], [])
        except BaseException as error:
            # Also when a signal has ended the wait for a slow reader: the interpreter, which
            # writes what is left when it ends, must not wait again.
            self._drop()
            if isinstance(error, BrokenPipeError):
                raise OutputClosedError from None
            if isinstance(error, OSError):
                raise StreamError("output", "written", _why(error)) from None
            raise
        return written

    def _drop(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class _Errors(io.FileIO):
    """Standard error: what cannot be written is nowhere else to be said."""

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left:
                written = super().write(left)
                if written is None:
                    select.select([], [self], [])
                left = left[written or 0 :]
        return memoryview(data).nbytes


def _why(error: OSError) -> str:
    return "it is closed" if error.errno == EBADF else str(error.strerror)
