"""The memory that the system gives a process: who takes more is killed without a word."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ENOUGH_BYTES: Final = 1 << 30
"""Below this a store says so at its start.  Under load it takes some 330 MiB, and 32 KiB more for
each message that waits in the queue of a producer that is faster than the disk."""

_OWN: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")

_log = logging.getLogger("dafka.store")


def memory_limit(own: Path = _OWN, groups: Path = _GROUPS) -> int | None:
    """The least memory limit of this process's control groups, in bytes; None: there is none.

    Args:
        own: says which groups these are.
        groups: where they are; in a container its own one may be the topmost (cgroups(7)).
    """
    limits = []
    for path in _limit_files(own, groups):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits, default=None)


def say_if_low(limit_bytes: int | None) -> None:
    """Says what a store with little memory is to expect."""
    if limit_bytes is not None and limit_bytes < ENOUGH_BYTES:
        _log.warning(
            "this store may use %d MiB of memory, by the limit of its container or service; under "
            "load it may need %d MiB, and is killed then without a word (exit code 137). What it "
            "has acknowledged is safe, and it goes on when it is started again. Give it more, or "
            "set high_water_mark = 1000 here and a small max_unacked_bytes at its producers",
            *(limit_bytes >> 20, ENOUGH_BYTES >> 20),
        )


def _limit_files(own: Path, groups: Path) -> Iterator[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            directory, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            directory, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        here = Path(path)
        yield from (directory / str(each).lstrip("/") / name for each in (here, *here.parents))
