"""A writer of an archive that is killed before its n-th change of the disk, for each n.

Each writer is forked from this process before Arrow has started a thread.
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

from dafka_core.archive import archive, manifest
from tests.integration.archive.records import A, archived

CHANGES: Final = ("fsync", "link", "rename", "replace", "mkdir", "unlink", "rmdir", "write")


def main(directory: Path) -> None:
    """Write to directories 0, 1, ... until a writer completes; print how many there are."""
    for step in count():
        made = directory / str(step)
        made.mkdir()
        if (child := os.fork()) == 0:
            _work(made, step)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            if os.waitstatus_to_exitcode(status):
                raise SystemExit(1)
            print(step + 1)
            return


def _work(directory: Path, step: int) -> None:
    left = step

    def killing(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return change(*arguments, **named)

        return changed

    manifest.FOLD = 2  # type: ignore[misc]  # the second commit is followed by a fold
    for name in CHANGES:
        setattr(os, name, killing(getattr(os, name)))
    archive.RecordFile.write = killing(archive.RecordFile.write)  # type: ignore[method-assign]
    try:
        archived(directory, A, 30)
        archived(directory, A, 60)
    except Exception:  # noqa: BLE001 -- the parent is told of any
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
