"""Files and directories that survive a power cut, files with secrets, and how many may be open."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

T = TypeVar("T")

_NO_SYNC: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of file systems (network, FUSE) that cannot sync a directory."""

NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)
"""Errors of file systems without hard links."""


@contextmanager
def open_new(path: Path, mode: int | None = None, *, replaces: bool = True) -> Iterator[BinaryIO]:
    """Open a file that gets the name ``path`` at the end, when its contents are on disk.

    An error or a power cut leaves the previous file, or none.  Without ``replaces`` one that exists
    raises FileExistsError.
    """
    _check_missing(path, replaces)
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(made, flags, 0o666 if mode is None else 0o600), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
        move((made, path), replaces=replaces)
    finally:
        made.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write or replace a file; see ``open_new``."""
    with open_new(path, mode) as file:
        file.write(content)


def move(*moves: tuple[Path, Path], replaces: bool = True) -> None:
    """Give finished files and directories their final names, and sync everything.

    Contents reach the disk first, so that no name ever leads to half a file.
    """
    for made, _ in moves:
        _sync_all(made)
    for made, path in moves:
        if replaces:
            made.replace(path)
        else:
            _link(made, path)
    for directory in {path.parent for _, path in moves}:
        sync(directory)
    for made, _ in moves:
        # Not before: a power cut could lose both names of a file.
        made.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Put a file's contents, or a directory's names, on disk, as far as its file system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # writing to a directory does not require permission to read it
        os.sync()
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = 0o777, *, below: Path | None = None) -> None:
    """Make a directory and the missing ones above it; their names are on disk at the end.

    The deepest one that exists is synced, too: the process that made it may have been killed before
    its sync.  Directory ``below`` must exist; where many processes make the levels below it, all of
    them are synced.
    """
    path = path.absolute()
    # ``Path.exists`` raises where a name is too long.
    exists = os.path.exists
    found = below or next(each for each in (path, *path.parents) if exists(each)).parent
    for each in reversed([path, *path.parents][: len(path.relative_to(found.absolute()).parts)]):
        is_new = not exists(each)
        if is_new or each == path:
            each.mkdir(mode if each == path else 0o777, exist_ok=True)
        parent = each.resolve().parent
        if is_new or os.access(parent, os.R_OK):  # else it is older, in another user's directory
            sync(parent)


def _sync_all(path: Path) -> None:
    if path.is_dir():
        for each in path.iterdir():
            if stat.S_IFMT(each.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                _sync_all(each)
    sync(path)


def _link(made: Path, path: Path) -> None:
    """Give a file another name, which must be free; without hard links, only the other name."""
    try:
        os.link(made, path)  # replaces nothing, unlike a rename
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _check_missing(path, replaces=False)
        made.rename(path)


def _check_missing(path: Path, replaces: bool) -> None:
    if not replaces and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


OWNERS_ALONE: Final = 0o700  # for a directory of records: its mode may give others read access
OTHERS_READ: Final = 0o644  # the most permissive mode of a file that only its owner writes


def mode_within(directory: Path) -> int:
    """Return the permissions of a new file: those of its directory, without execution."""
    return directory.stat().st_mode & 0o666


def others_can_read(status: os.stat_result) -> bool:
    """Return True if a file can be read by others than its owner.

    Read permission that the system's owner gives a group, as in Kubernetes, is beyond this user's
    control.
    """
    others = 0o027 if status.st_uid == 0 and os.geteuid() != 0 else 0o077
    return bool(stat.S_IMODE(status.st_mode) & others)


class PrivateFile(Generic[T]):
    """A file that only its owner may read.

    Args:
        made_by: the command that makes it, for errors.
        parse: parses its contents; raises ValueError with the reason if they are invalid.
    """

    def __init__(self, path: str | Path, made_by: str, parse: Callable[[bytes], T]) -> None:
        self._path = Path(path)
        self._made_by = made_by
        self._parse = parse
        self._state: object = None
        self._contents: T
        self._logged = ""

    def read(self) -> T:
        """Return the parsed contents; raise ValueError with the reason while they are invalid."""
        try:
            status = self._path.stat()
            state = status.st_ctime_ns, status.st_size, status.st_ino
            if state == self._state:
                return self._contents
            octets = self._path.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no path"
            raise ValueError(f"must be a file that '{self._made_by}' made ({reason})") from None
        try:
            contents = self._parse(octets)
        except ValueError as error:  # such as of a public key, which others may read
            raise ValueError(f"{self._path} {error}") from None
        if others_can_read(status):
            cure = f"'chmod 600 {self._path}', and replace its secret if they have read it"
            raise ValueError(f"{self._path} can be read by others: {cure}")
        self._contents, self._state = contents, state
        return contents

    def reread(self, default: T, log: Callable[[str], None]) -> T:
        """Return the parsed contents, or a default while they are invalid; log each reason once."""
        try:
            contents, why = self.read(), ""
        except ValueError as error:
            contents, why = default, str(error)
            if why != self._logged:
                log(why)
        self._logged = why
        return contents


# -- the limit of open files, of which each peer uses two or more ----------------------------------


def open_files_limit() -> int:
    """Return the process's soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit() -> None:
    """Raise the process's soft limit of open files to the hard one.

    The soft limit is for programs with ``select()``, which breaks at descriptors above 1,023.
    Others raise it at their start, as Go's runtime and Java do.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems have a lower maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
