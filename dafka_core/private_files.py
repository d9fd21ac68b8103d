"""Files that are their owner's alone, and files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

OWNERS_ALONE: Final = 0o700
"""For a directory that is made for records: who is to read them, too, is let in by its mode."""

OTHERS_READ: Final = 0o644
"""At most for a file that its owner alone is to write."""

_NO_SYNC: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system says that does not sync directories."""


def mode_within(directory: Path) -> int:
    """The permissions of a new file: whoever its directory lets in may do as much with the file."""
    return directory.stat().st_mode & 0o666


def others_can_read(status: os.stat_result) -> bool:
    """Whether anybody but its owner can read a file.

    What the system's owner lets a group read, as Kubernetes does, is not this user's to change.
    """
    others = 0o027 if status.st_uid == 0 and os.geteuid() != 0 else 0o077
    return bool(stat.S_IMODE(status.st_mode) & others)


def replace_file(path: Path, octets: bytes, mode: int) -> None:
    """Replaces a file, if it is there: a power cut leaves the old one or the new one, whole.

    Some file systems, of networks or FUSE's, sync no directory: what they keep is theirs to say.

    Raises:
        OSError: it cannot be written, and the one that was there is as it was; or the disk failed
            when it had been replaced.
    """
    with contextlib.ExitStack() as stack:
        # Before anything is replaced: who may write to a directory need not be let read it.
        directory = os.open(path.parent, os.O_RDONLY)
        stack.callback(os.close, directory)
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(octets)
                file.flush()
                os.fsync(descriptor)
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        try:
            os.fsync(directory)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise


def sync_directory(directory: Path) -> None:
    """Puts the names of a directory's files on disk."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
