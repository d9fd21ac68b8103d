"""Limits of the process: open files, which each peer uses, and memory.

At the limit of open files ZeroMQ neither connects nor accepts, and retries without logging:
messages between this node and a peer would arrive in one direction only.  So while one more peer
might not fit, a node connects to no new peers and ends the connections of those to it.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
from pathlib import Path
from typing import Final

from dafka_core.security.throttles import LogThrottle

PER_PEER: Final = 2  # descriptors of a peer: its connection to this node, and this node's to it
PER_PEER_APART: Final = 5  # of a peer with a socket of its own, which two more sockets monitor
RESERVE: Final = 16  # for short-lived files, and peers that connect before their beacons arrive
SCAN_INTERVAL_S: Final = 0.1  # of counts of open files: any node may announce thousands of peers
MAX_REFUSED: Final = 10_000  # of the list of refused peers, since any node may announce some

_OPEN: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")

_log: Final = logging.getLogger("dafka.nodes")
_store_log: Final = logging.getLogger("dafka.store")


def soft_limit() -> int:
    """Return the process's soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the process's soft limit of open files to the hard one.

    The soft limit is for programs with ``select()``, which breaks at descriptors above 1,023.
    Others raise it at their start, as Go's runtime and Java do.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_count() -> int:
    """Return the number of open descriptors; a list of thousands takes Linux 20 ms."""
    is_counted = sys.platform == "linux"  # since Linux 6.2
    return (is_counted and _OPEN.stat().st_size) or len([*_OPEN.iterdir()])


class PeerRoom:
    """The open files that are left for peers, and the peers refused for want of them."""

    def __init__(self, per_peer: int) -> None:
        # By endpoint: the node, and the time of its last beacon.
        self.refused: dict[str, tuple[str, float]] = {}
        self._per_peer = per_peer
        self._limit = soft_limit()
        self._scan_due = 0.0
        self._others = 0  # descriptors not used for peers
        self._least: int | None = None  # the first number of these
        self._throttle = LogThrottle()

    def has_room(self, peer_count: int) -> bool:
        """Return True if one more peer fits, by the last count."""
        return self._needed(peer_count + 1) <= self._limit

    def count(self, now: float, peer_count: int) -> bool:
        """Count the open files again unless that was done just now; return True if it was."""
        if now < self._scan_due:
            return False
        self._scan_due = now + SCAN_INTERVAL_S
        try:
            count = _open_count()
        except OSError:  # no descriptor is left for counting
            self._others = self._limit
            return True
        others = count - self._per_peer * peer_count
        if self._least is None:
            self._least = others
        self._others = max(others, self._least)  # known peers' descriptors may not be open yet
        return True

    def refuse(self, now: float, node: str, endpoint: str) -> None:
        """Note a peer that does not fit."""
        if endpoint in self.refused or len(self.refused) < MAX_REFUSED:
            self.refused[endpoint] = node, now

    def report(self, now: float, peer_count: int, expiry_s: float) -> None:
        """Log the number of refused peers that still send beacons, once a minute."""
        for endpoint, (_, heard_at) in tuple(self.refused.items()):
            if now - heard_at > expiry_s:
                del self.refused[endpoint]
        count = len(self.refused)
        if count and self._throttle.is_new("refused"):
            needed, others = self._needed(peer_count + count), self._needed(0)
            _log.error(
                "%d peers refused: open files limit %d; needed about %d per peer + %d: "
                "ulimit -n %d",
                *(count, self._limit, self._per_peer, others, needed),
            )

    def _needed(self, peer_count: int) -> int:
        return self._others + RESERVE + self._per_peer * peer_count


# Under load a store takes some 330 MiB, and 32 KiB more for each message that waits for the disk.
ENOUGH_BYTES: Final = 1 << 30

_OWN: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")


def warn_of_low_memory(own: Path = _OWN, groups: Path = _GROUPS) -> None:
    """Warn of the consequences if the control groups of this process leave a store little memory.

    ``own`` names the group, and ``groups`` is the root of all; in a container the own group may be
    topmost.
    """
    lines = own.read_text().splitlines() if own.exists() else []
    limits = [ENOUGH_BYTES]
    for path in (Path(line.removeprefix("0::")) for line in lines if line.startswith("0::")):
        for each in (path, *path.parents):
            with contextlib.suppress(OSError, ValueError):  # missing, or "max"
                limits.append(int((groups / str(each).lstrip("/") / "memory.max").read_text()))
    if (limit_bytes := min(limits)) < ENOUGH_BYTES:
        _store_log.warning(
            "this store may use %d MiB of memory, by the limit of its container or service; under "
            "load it may need %d MiB, and is killed then without a word (exit code 137). What it "
            "has acknowledged is safe, and a restart continues from there. Give it more memory, or "
            "set high_water_mark = 1000 here and a small max_unacked_bytes at its producers",
            *(limit_bytes >> 20, ENOUGH_BYTES >> 20),
        )
