"""The stores of each mesh, in a file of this machine.

Spark ends its Python workers after a minute without work.  The workers of the next batch find the
stores by this file, even while no tower answers.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import ClassVar, Final

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.store_location import StoreLocation, this_machine
from dafka_core.model.json_message import JsonMessage
from dafka_core.system.files import replace_file
from dafka_spark.cluster import timing

MAX_FILES: Final = 64  # one file for each mesh; the oldest ones are deleted

_written: Final[dict[str, tuple[float, frozenset[StoreLocation]]]] = {}
"""By mesh: when this process wrote the file, and the stores in it."""


class _StoresFile(JsonMessage, frozen=True):
    what: ClassVar[str] = "file of known stores"

    stores: tuple[StoreLocation, ...]


def remember(tower: str, stores: Collection[StoreLocation]) -> None:
    """Write the locations of a mesh's stores for later processes; ignore a disk that fails."""
    new, now = frozenset(stores), time.monotonic()
    written_at, old = _written.get(tower, (0.0, frozenset()))
    if not new or (new == old and now < written_at + timing.REWRITE_S):
        return
    with suppress(OSError):
        directory = _directory()
        packed = _StoresFile(tuple(sorted(new, key=lambda each: each.store))).packed()
        replace_file(directory / _file_name(tower), packed, 0o600)
        files = sorted(directory.iterdir(), key=lambda each: each.stat().st_mtime)
        for oldest in files[:-MAX_FILES]:
            oldest.unlink()
        _written[tower] = now, new


def remembered(tower: str) -> list[StoreLocation]:
    """Return the locations that a process of this machine wrote last; empty without a file."""
    with suppress(OSError, InvalidRequestError):
        return list(_StoresFile.parse((_directory() / _file_name(tower)).read_bytes()).stores)
    return []


def _directory() -> Path:
    """Return the user's own directory; raise OSError if others have access to it."""
    directory = Path(tempfile.gettempdir()) / f"dafka-{os.getuid()}"
    directory.mkdir(0o700, exist_ok=True)
    found = directory.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{directory} is not private to this user")
    return directory


def _file_name(tower: str) -> str:
    # With the machine's name, because a local address means another tower on another machine.
    return f"{sha256(f'{tower} {this_machine()}'.encode()).hexdigest()[:32]}.json"
