"""The process's limit of open files, of which each peer uses two or more."""

from __future__ import annotations

import contextlib
import resource
import sys


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
