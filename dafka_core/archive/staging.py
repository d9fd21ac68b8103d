"""Files on their way into the archive: written, then named in the manifest, then given their names.

A writer has a directory of its own for them, which it holds a lock on.  The lock ends with the
process, however that ends, so another writer can tell what a dead one has left: files that the
manifest names get their names, others are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from dafka_core.archive import layout
from dafka_core.archive.layout import translated
from dafka_core.archive.manifest import ArchivedFile, Manifest
from dafka_core.system.files import make_directory, move

_ID: Final = re.compile("[0-9a-f]{32}")


class Staging:
    """A directory for one writer's files of one topic; ``id`` is its name.

    At the end, also after an error, what the manifest names is published, and nothing else remains.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.id = uuid.uuid4().hex
        self._manifest = manifest
        self.directory = staged_directory(manifest, self.id)
        self._lock = -1

    def __enter__(self) -> Self:
        while self._lock < 0:
            with translated(self._manifest.directory):
                make_directory(self.directory, below=self._manifest.directory)
                try:
                    self._lock = _locked(self.directory)
                except (FileNotFoundError, BlockingIOError):
                    # Another writer has taken it for a dead one's, as it was not locked yet.
                    self.id = uuid.uuid4().hex
                    self.directory = staged_directory(self._manifest, self.id)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._settle()
            else:
                # What failed is what is to be told: who writes next settles this, too.
                with contextlib.suppress(Exception):
                    self._settle()
        finally:
            os.close(self._lock)

    def add(self, made: Sequence[tuple[Path, ArchivedFile]]) -> None:
        """Stage finished files, synced; the manifest may name them then."""
        with translated(self._manifest.directory):
            move(*((path, staged_path(self._manifest, file)) for path, file in made))

    def _settle(self) -> None:
        # A commit of which the disk said no may be there all the same.
        self._manifest.refresh()
        _settle(self._manifest, self.id)


def staged_directory(manifest: Manifest, staged: str) -> Path:
    """Where files of one writer are until they are published."""
    return manifest.commits / layout.STAGED / staged


def staged_path(manifest: Manifest, file: ArchivedFile) -> Path:
    """Where a file is before it is published: under a name that no reader of Parquet looks for."""
    return staged_directory(manifest, file.staged) / f"{file.name}.staged"


def path_of(manifest: Manifest, file: ArchivedFile) -> Path:
    """Where a file is once it is published."""
    return manifest.records / layout.day_name(file.day) / file.name


def publish(manifest: Manifest, files: Sequence[ArchivedFile]) -> None:
    """Gives files that the manifest names their names, synced; those that have them keep them.

    Raises:
        ArchiveError: the disk fails; who writes next to the archive does the rest.
    """
    with translated(manifest.directory):
        moves = [(staged_path(manifest, file), path_of(manifest, file)) for file in files]
        for day in sorted({path.parent for _, path in moves}):
            make_directory(day, below=manifest.directory)
        move(*((staged, path) for staged, path in moves if staged.exists()))


def recover(manifest: Manifest) -> None:
    """Finishes, or removes, what writers have left that were killed.

    Raises:
        ArchiveError: the disk fails.
    """
    with translated(manifest.directory):
        try:
            found = [path.name for path in (manifest.commits / layout.STAGED).iterdir()]
        except FileNotFoundError:
            return
        for name in filter(_ID.fullmatch, found):
            try:
                lock = _locked(staged_directory(manifest, name))
            except OSError:
                continue  # its writer is alive, has just ended, or the file system has no locks
            try:
                manifest.refresh()  # under the lock: its writer adds nothing any more
                _settle(manifest, name)
            finally:
                os.close(lock)


def _settle(manifest: Manifest, staged: str) -> None:
    directory = staged_directory(manifest, staged)
    with translated(manifest.directory):
        left = {path.name for path in directory.iterdir()}
        if left:
            files = (file for files in manifest.files.values() for file in files)
            own = (file for file in files if file.staged == staged)
            publish(manifest, [f for f in own if staged_path(manifest, f).name in left])
        shutil.rmtree(directory)


def _locked(directory: Path) -> int:
    """A descriptor with the lock on a directory, which is there then.

    Raises:
        FileNotFoundError, BlockingIOError: it is gone, or another one's.
        OSError: the file system has no locks, so that nobody takes over what is left there.
    """
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        directory.stat()  # who had it before may have removed it
    except BaseException:
        os.close(opened)
        raise
    return opened
