"""Changes to the checkpoint of a query: rewind, reset and copy, after a backup.

Spark keeps no lock, so whether the query runs cannot be known for sure: one whose checkpoint has
changed a short while ago may run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.errors import DafkaError
from dafka_core.queries.checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    STATE,
    Checkpoint,
    local_path,
    refused,
)
from dafka_core.system.files import make_directory, move

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


QUIET_S: Final = 60.0
"""For so long the checkpoint of a query that has stopped has not changed."""

_FULL: Final = ("snapshot", "zip")
_VERSION: Final = re.compile(r"(\d{1,18})(_[^.]+)?\.(snapshot|zip|delta|changelog)")
_OPERATOR: Final = re.compile(r"\d{1,18}")


class _StateFile(NamedTuple):
    """What a state store has of a version: all of it, or what is new in it."""

    path: Path
    version: int
    is_full: bool


def rewind(checkpoint: Checkpoint, batch: int, *, is_stopped: bool = False) -> Path:
    """Has a query go on behind a batch that is committed, as if it were the last one.

    What is after that is in the backup only, whose path is returned.

    Args:
        checkpoint: the query's.
        batch: its number.
        is_stopped: the caller knows that the query does not run.

    Raises:
        ConfigError: the query may run; the batch is not there, or not committed; another source's
            offsets are there, or state that does not go back so far.
        DafkaError: the disk refuses; then nothing has changed, or a part: the query would go on
            behind a batch between the two, and this may be repeated.
    """
    _check_quiet(checkpoint, is_stopped)
    target = checkpoint.batch(batch)
    if not target.is_committed:
        raise checkpoint.refused(f"has no committed batch {batch}: it is unfinished, and run again")
    if len(target.own_ends) < len(target.ends):
        raise checkpoint.refused("is of a query with other sources, too, which cannot be rewound")
    states = [*_state_files(checkpoint.path / STATE)]
    _check_state(checkpoint, states, batch)
    backup = _backup_path(checkpoint)
    copied(checkpoint, str(backup))
    try:
        # A state without its batches is refused by Spark; one that is left would be taken later.
        _remove(each.path for each in states if each.version > batch + 1)
        _remove(_operators_after(checkpoint.path / STATE, batch))
        for number in sorted({*checkpoint.planned, *checkpoint.committed}, reverse=True):
            if number > batch:  # after each step it is the checkpoint of an earlier moment
                _remove(checkpoint.path / name / str(number) for name in (COMMITS, OFFSETS))
    except OSError as error:
        raise DafkaError(f"{checkpoint.path} is rewound in part: {error}") from error
    return backup


def reset(checkpoint: Checkpoint, *, is_stopped: bool = False) -> Path:
    """Has a query begin again, as a new one; all there was is in the backup, which is returned.

    Raises:
        ConfigError: the query may run.
        DafkaError: the directory cannot be renamed; nothing has changed.
    """
    _check_quiet(checkpoint, is_stopped)
    own, backup = checkpoint.path.resolve(), _backup_path(checkpoint)
    try:
        move((own, backup))
        make_directory(own, backup.stat().st_mode & 0o777)
    except OSError as error:
        raise DafkaError(f"{own} cannot be reset: {error}") from error
    return backup


def last_until(checkpoint: Checkpoint, time_ms: float) -> int:
    """The last committed batch that Spark had planned at a time (milliseconds since 1970 UTC).

    Raises:
        ConfigError: there is none.
    """
    found = (each for each in checkpoint.batches() if each.is_committed)
    earlier = [each.number for each in found if each.time_ms <= time_ms]
    if not earlier:
        raise checkpoint.refused("has no committed batch from then or before")
    return earlier[-1]


def _check_quiet(checkpoint: Checkpoint, is_stopped: bool) -> None:
    if is_stopped:
        return
    folders = (checkpoint.path / name for name in (OFFSETS, COMMITS))
    changed = [each.stat().st_mtime for each in folders if each.exists()]
    ago_s = time.time() - max(changed, default=0.0)
    if ago_s < QUIET_S:
        why = f"has changed {max(ago_s, 0.0):.0f} s ago: its query may run, and would not notice"
        cure = f"stop it, and wait for {QUIET_S:.0f} s, or say that it does not run (--stopped)"
        raise checkpoint.refused(f"{why}; {cure}")


def _backup_path(checkpoint: Checkpoint) -> Path:
    own = checkpoint.path.resolve()
    name = f"{own.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for number in count(1):
        path = own.with_name(name if number == 1 else f"{name}-{number}")
        if not path.exists():
            break
    return path


def _state_files(directory: Path) -> Iterator[_StateFile]:
    for path in directory.rglob("*"):
        if found := _VERSION.fullmatch(path.name):
            yield _StateFile(path, int(found[1]), found[3] in _FULL)


def _operators_after(directory: Path, batch: int) -> Iterator[Path]:
    for path in directory.glob("*/_metadata/v2/*"):
        if _OPERATOR.fullmatch(path.name) and int(path.name) > batch:
            yield path


def _check_state(checkpoint: Checkpoint, states: Iterable[_StateFile], batch: int) -> None:
    stores: dict[Path, dict[int, bool]] = {}
    for path, version, is_full in states:
        known = stores.setdefault(path.parent, {})
        known[version] = known.get(version, False) or is_full
    for store, versions in stores.items():
        version = batch + 1
        while version > 0 and not versions.get(version, True):
            version -= 1
        if version > 0 and version not in versions:
            first = min(versions) - 1
            why = f"has no state any more as of batch {batch}, at {store}: the first is {first}"
            raise checkpoint.refused(f"{why}; rewind to a later one, or reset it")


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        for each in (path, *checksums(path)):
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)
    os.sync()
