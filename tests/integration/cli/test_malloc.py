"""Memory that a process with a node in it keeps."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from dafka_core.cli import process
from tests.integration.cli.processes import environment

PIECES = 3
# Frees the same buffers repeatedly, and counts the system's page faults.
BURSTS = f"""
import resource, sys
from dafka_core.cli.process import LARGEST_KEPT_BYTES, keep_freed_memory

def burst():
    pieces = [bytearray(LARGEST_KEPT_BYTES - 4096) for _ in range({PIECES})]
    for piece in pieces:
        piece[::4096] = b"x" * len(piece[::4096])

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory()
burst()
before = pages()
for _ in range(5):
    burst()
print(pages() - before)
"""


def pages_of_bursts(mode: str) -> int:
    command = [sys.executable, "-c", BURSTS, mode]
    told = subprocess.run(command, capture_output=True, env=environment(), check=True)
    return int(told.stdout)


def test_memory_that_was_freed_is_there_for_the_next_burst() -> None:
    assert 10 * pages_of_bursts("keep") < pages_of_bursts("give back")


def test_with_another_c_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def other_library(name: object) -> object:
        asked.append(name)
        return object()  # it has no mallopt

    monkeypatch.setattr(ctypes, "CDLL", other_library)
    process.keep_freed_memory()
    assert asked == [None]
