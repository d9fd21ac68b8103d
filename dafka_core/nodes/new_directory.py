"""The directory that a store has made for itself, and does not leave behind if it cannot start."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from dafka_core.flight.store_location import SESSION_FILE
from dafka_core.nodes.store_identity import ADDRESS_FILE, ORIGIN_FILE
from dafka_core.storage import Log
from dafka_core.storage.open_environment import OPEN_FILES

_FILES: Final = (ADDRESS_FILE, ORIGIN_FILE, SESSION_FILE, *reversed(OPEN_FILES))
"""What a store makes in its directory; the file by which it holds it comes last."""


class NewDirectory:
    """The directories that are not there yet on the way to ``directory``, and it itself."""

    def __init__(self, directory: Path) -> None:
        directory = directory.absolute()
        self._directory = directory
        # ``Path.exists`` raises where a name is too long, which making it will say.
        self._made = [
            each
            for each in (directory, *directory.parents)
            if not os.path.exists(each)  # noqa: PTH110
        ]

    def remove_files(self, log: Log) -> None:
        """Removes the files of a store that has no records yet, while it holds the directory.

        Another store that starts in it then finds nothing, and makes its own.
        """
        if self._made and not log.partitions() and not log.met():
            for name in _FILES:
                (self._directory / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes those directories that are empty."""
        with suppress(OSError):
            for each in self._made:
                each.rmdir()
