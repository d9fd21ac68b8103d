"""Check of a command's syncs: a power cut at its first output must not lose any of its files.

As a program: ``python -m tests.synced_disk DIRECTORY COMMAND...`` runs ``dafka COMMAND...``, and
exits with LOST at its first output if a power cut would lose anything new in the directory.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dafka_core.cli import main, output
from tests.integration.cli.processes import environment

LOST: Final = 97

OWN_SYNC: Final = ("data.mdb", "lock.mdb", "leases", "writer.lock")
"""Files of an open store: LMDB syncs the first, and a start writes the others anew."""


class SyncedDisk:
    """The state of a directory's files and names at their last sync.

    It replaces functions of module ``os``, in pytest by a ``monkeypatch``.
    """

    def __init__(
        self, root: Path, replace: Callable[[object, str, object], None] = setattr
    ) -> None:
        self._root = root
        self._contents: dict[int, tuple[int, int]] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._early: list[str] = []
        self._sync_all()
        for name in ("rename", "replace", "link"):
            replace(os, name, self._checked(getattr(os, name)))
        real_fsync, real_sync = os.fsync, os.sync

        def fsync(descriptor: int) -> None:
            real_fsync(descriptor)
            self._keep(Path(f"/proc/self/fd/{descriptor}").readlink())

        def sync() -> None:
            real_sync()
            self._sync_all()

        replace(os, "fsync", fsync)
        replace(os, "sync", sync)

    def lost(self) -> list[str]:
        """Return the paths that a power cut would lose now, and renames of unsynced files."""
        return [*self._early, *(str(each) for each in self._paths() if not self._is_kept(each))]

    def _paths(self) -> Iterator[Path]:
        return (each for each in self._root.rglob("*") if each.is_file() or each.is_dir())

    def _sync_all(self) -> None:
        for each in (self._root, *self._paths()):
            self._keep(each)

    def _keep(self, path: Path) -> None:
        status = path.stat()
        if path.is_dir():
            names = {each.name: each.lstat().st_ino for each in path.iterdir()}
            self._names[status.st_ino] = names
        else:
            self._contents[status.st_ino] = status.st_size, status.st_mtime_ns

    def _is_kept(self, path: Path) -> bool:
        status = path.lstat()
        names = self._names.get(path.parent.stat().st_ino, {})
        return names.get(path.name) == status.st_ino and (path.is_dir() or self._is_synced(path))

    def _is_synced(self, path: Path) -> bool:
        status = path.lstat()
        known = self._contents.get(status.st_ino)
        return path.name in OWN_SYNC or known == (status.st_size, status.st_mtime_ns)

    def _checked(self, real: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any, **named: Any) -> None:
            path = Path(source)
            files = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
            if path.is_relative_to(self._root):
                self._early += [f"{target} <- {e}" for e in files if not self._is_synced(e)]
            real(source, target, **named)

        return moved


def run_watched(directory: Path, *arguments: str, given: bytes = b"") -> str:
    """Run a command and return its output; fail if a power cut at its output would lose a file."""
    command = [sys.executable, "-m", __name__, str(directory), *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, check=False, env=environment(), timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    return (done.stdout + done.stderr).decode()


def _watch(root: Path) -> None:
    disk = SyncedDisk(root)

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def said(*arguments: Any, **named: Any) -> Any:
            if lost := disk.lost():
                sys.stderr.write("a power cut would lose:\n" + "\n".join(lost))
                sys.stderr.flush()
                os._exit(LOST)
            return real(*arguments, **named)

        return said

    for name in ("done", "info", "table", "ready"):
        setattr(output, name, watched(getattr(output, name)))


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
    sys.argv = ["dafka", *sys.argv[2:]]
    main()
