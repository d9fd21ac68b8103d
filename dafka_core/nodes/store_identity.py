"""The identity of a store: its address beside its records, and its directory.

A producer that waits for two stores must not count one twice after a restart, so the address lasts
as long as the directory.  And it must not mistake two stores for one: a copy of a directory is
another store, with other records from its start on.  Functions here raise StoreError for a file
that cannot be read or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from dafka_core.config.node_options import SecurityOptions
from dafka_core.errors import ConfigError, StoreError
from dafka_core.nodes.addresses import new_address
from dafka_core.storage import Log
from dafka_core.storage.storage_errors import BACKUP_MANIFEST, DATA_FILE
from dafka_core.system.files import OTHERS_READ, mode_within, replace_file

ADDRESS_FILE: Final = "address"

ORIGIN_FILE: Final = "origin"
"""Identifies the files that the address belongs to by their inode numbers: copies have others.  A
move or rename of the directory within its file system preserves them."""


def kept_address(directory: Path, config: SecurityOptions | None = None) -> str:
    """Return the address of the store in ``directory``; create it if missing.

    Raises StoreError if the files are a copy of a store's, or have no valid address.
    """
    with _translated(directory):
        found, origin = _read(directory / ADDRESS_FILE), _read(directory / ORIGIN_FILE)
        if found is None and origin is None:
            return new_identity(directory, config)
        address = _address(directory, found)
        # Without an origin: the store ended between writing the two files.
        if origin and origin != _origin(directory):
            moved = "if its original is gone for good, as after a move to another disk, delete file"
            keeps = f"{moved} {ORIGIN_FILE} in it instead: then it keeps its address"
            raise StoreError(directory, f"{copied(address)}; {keeps}")
        _write(directory / ORIGIN_FILE, _origin(directory))
        return address


def address_of(directory: Path) -> str:
    """Return the address of the store in ``directory``; empty without a store."""
    with _translated(directory):
        found = _read(directory / ADDRESS_FILE)
        return "" if found is None else _address(directory, found)


def new_identity(directory: Path, config: SecurityOptions | None = None) -> str:
    """Write a new address for the files in ``directory``, and return it."""
    take_address(directory, address := new_address(config))
    return address


def take_address(directory: Path, address: str) -> None:
    """Change the address of the store in ``directory``; the caller has its log open."""
    with _translated(directory):
        # The origin last: if this ends halfway, the copy is still refused.
        _write(directory / ADDRESS_FILE, address)
        _write(directory / ORIGIN_FILE, _origin(directory))


def restore(directory: Path | str) -> str:
    """Turn a copy of a store's directory into a store of its own, and return its address."""
    with log_of(directory) as log:
        return new_identity(log.directory)


def log_of(directory: Path | str, *, unchecked: bool = False) -> Log:
    """Open the log of a stopped store; raise StoreError if none is here, or it is running."""
    check_directory(directory)
    directory = Path(directory)
    # ``Log`` names a backup and its remedy.
    if not any((directory / each).exists() for each in (DATA_FILE, BACKUP_MANIFEST)):
        raise StoreError(directory, f"there is no store here (no file {DATA_FILE})")
    return Log(directory, unchecked=unchecked)


def check_directory(directory: Path | str) -> None:
    """Raise ConfigError for an empty name, which would be the working directory."""
    is_path = isinstance(directory, str | Path)
    if not is_path or not str(directory) or "\0" in str(directory):
        why = "must name a directory; '.' is the working directory"
        raise ConfigError("directory", directory, why)


def copied(address: str) -> str:
    """Return the reason against a second store with one address, and the remedy."""
    return (
        f"its files are a copy of those of store {address}, and two stores cannot have one "
        "address: run 'dafka store restore DIR' to make this copy a store of its own, which keeps "
        "its records and replicates the missing ones from other stores"
    )


def _address(directory: Path, found: str | None) -> str:
    try:
        return UUID(found or "").hex.upper()
    except ValueError as error:
        has = "is missing" if found is None else f"has {found[:40]!r}, which is no store's address"
        raise StoreError(
            directory,
            f"file {ADDRESS_FILE} {has}: write the store's into it, 32 hexadecimal digits that it "
            "printed at each start, or run 'dafka store restore DIR', which makes it another store "
            "with the same records",
        ) from error


def _origin(directory: Path) -> str:
    return " ".join(str(path.stat().st_ino) for path in (directory, directory / DATA_FILE))


def _read(path: Path) -> str | None:
    return path.read_text("ascii", "replace").strip() if path.exists() else None


def _write(path: Path, text: str) -> None:
    if _read(path) != text:
        replace_file(path, f"{text}\n".encode(), mode_within(path.parent) & OTHERS_READ)


@contextmanager
def _translated(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(directory, f"file {ADDRESS_FILE}: {error}") from error
