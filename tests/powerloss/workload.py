"""The base of workloads for power cuts.

A workload appends each state to the file ``acknowledged``, before and after the step that leads to
it.  After a power cut the disk must have the last completed state, or the one that had begun.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

ACKNOWLEDGED: Final = "acknowledged"

DONE: Final = b'["done"'  # the first bytes of a line in that file for a completed step
State = Any  # the state of a workload on disk, as JSON


class Workload(ABC):
    """A program that writes to disk in steps, and the check of its disk."""

    first: ClassVar[State]  # the state before the first step

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, Random(seed)

    def prepare(self) -> None:
        """Create the directory, and the files that exist before the workload."""
        self.root.mkdir()

    @abstractmethod
    def run(self) -> None:
        """Do the work, each part of it in a ``step``."""

    @abstractmethod
    def state(self) -> State:
        """Check the disk, and return its state; the check may change it afterwards."""

    def is_allowed(self, found: State, done: State, begun: State) -> bool:
        """Return True if a power cut may leave this state between two others."""
        return found in (done, begun)

    @contextmanager
    def step(self, state: State) -> Iterator[None]:
        """Note that a step to a state has begun, then that it is done."""
        with (self.root / ACKNOWLEDGED).open("ab", buffering=0) as file:
            file.write(f"{json.dumps(['begun', state])}\n".encode())
            yield
            file.write(f"{json.dumps(['done', state])}\n".encode())

    def check(self, acknowledged: bytes) -> None:
        """Raise an error if the disk has neither the last done state nor the begun one."""
        done = begun = self.first
        for line in acknowledged.decode().splitlines(keepends=True):
            if line.endswith("\n"):  # else it was being written
                kind, begun = json.loads(line)
                done = begun if kind == "done" else done
        found = json.loads(json.dumps(self.state()))
        assert self.is_allowed(found, done, begun), f"{found} is not from {done} to {begun}"
