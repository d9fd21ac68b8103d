"""Permissions of files: those that are their owner's alone, and those within a directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

OWNERS_ALONE: Final = 0o700
"""For a directory that is made for records: who is to read them, too, is let in by its mode."""

OTHERS_READ: Final = 0o644
"""At most for a file that its owner alone is to write."""


def mode_within(directory: Path) -> int:
    """The permissions of a new file: whoever its directory lets in may do as much with the file."""
    return directory.stat().st_mode & 0o666


def others_can_read(status: os.stat_result) -> bool:
    """Whether anybody but its owner can read a file.

    What the system's owner lets a group read, as Kubernetes does, is not this user's to change.
    """
    others = 0o027 if status.st_uid == 0 and os.geteuid() != 0 else 0o077
    return bool(stat.S_IMODE(status.st_mode) & others)
