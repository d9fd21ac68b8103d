"""Copies of a query's checkpoint: the same query, or one of its own that goes on from there."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Final

from dafka_core.durable_files import make_directory, move
from dafka_core.errors import DafkaError
from dafka_core.queries.checkpoint import METADATA, Checkpoint, local_path, refused

TRIES: Final = 3
"""To copy what a running query does not change meanwhile."""


def copied(checkpoint: Checkpoint, to: str, query_id: str = "") -> Checkpoint:
    """A copy in a new directory, which appears as a whole; ``query_id`` is its own, if given.

    Raises:
        ConfigError: the directory cannot be taken.
        DafkaError: the query goes on changing what is copied, or the disk refuses.
    """
    target = local_path(to)
    own = checkpoint.path.resolve()
    if target.resolve().is_relative_to(own):
        raise refused(to, "is, or is in, the checkpoint that is to be copied")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise refused(to, "is there already; name a directory that is not")
    part = target.resolve().parent / f".{target.name}.{uuid.uuid4().hex}"
    try:
        make_directory(target.resolve().parent)
        _copy(own, part)
        if query_id:
            write_id(part, query_id)
        move((part, target.resolve()))
    except OSError as error:
        raise DafkaError(f"checkpoint {own} cannot be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Checkpoint.read(str(target))


def fork(checkpoint: Checkpoint, to: str) -> Checkpoint:
    """A copy with an id of its own: another query, which goes on from there; raises the same."""
    return copied(checkpoint, to, str(uuid.uuid4()))


def write_id(directory: Path, query_id: str) -> None:
    """Gives the query of a checkpoint another id."""
    path = directory / METADATA
    content = json.loads(path.read_text(encoding="utf-8")) | {"id": query_id}
    # A file whose checksum is another one's cannot be read; one without is read as it is.
    for checksum in checksums(path):
        checksum.unlink(missing_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def checksums(path: Path) -> tuple[Path, ...]:
    """Where the checksum of a file may lie: Hadoop's, or Spark's own."""
    return path.with_name(f".{path.name}.crc"), path.with_name(f"{path.name}.crc")


def _copy(own: Path, part: Path) -> None:
    for _ in range(TRIES):
        before = _files(own)
        try:
            shutil.copytree(own, part)
        except (shutil.Error, FileNotFoundError) as error:
            if _files(own) == before:
                raise OSError(str(error)) from error
        else:
            if _files(own) == before:
                return
        shutil.rmtree(part, ignore_errors=True)
    raise DafkaError(
        f"checkpoint {own} changes while it is copied: its query runs; stop it first, or try again"
    )


def _files(directory: Path) -> set[tuple[Path, int, int]]:
    found = set()
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            found.add((path.relative_to(directory), status.st_size, status.st_mtime_ns))
    return found
