"""The files of the checkpoint of a Spark streaming query.

    metadata     the query's id, as JSON
    offsets/N    the plan of batch N: its end offset in each source; written before the batch runs
    commits/N    written when batch N is done
    state/       the state of stateful operators: version N + 1 is the state after batch N
    sources/     files that some sources keep for themselves; format dafka keeps none

A file may have its checksum beside it, ``.N.crc``.  Spark keeps the last 100 batches or so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.json_message import json_object
from dafka_core.queries.source_offset import BatchRange, SourceOffset
from dafka_core.system.files import make_directory, move, sync

METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
STATE: Final = "state"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://(?=/))?")
_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999; later times are invalid."""

_KEPT_BATCHES: Final = 3
"""Batches kept in memory; the offsets of one may have thousands of partitions."""

_VOID: Final = "-"  # Spark's offset of a source without an offset


class Batch(NamedTuple):
    """A batch that Spark has planned.

    ``time_ms`` is the time of the plan, in milliseconds since 1970 UTC.  ``ends`` are its end
    offsets by source; None for a source of another format.
    """

    number: int
    is_committed: bool
    time_ms: int
    ends: Mapping[str, SourceOffset | None]

    @property
    def own_ends(self) -> dict[str, SourceOffset]:
        """The end offsets of sources of format dafka."""
        return {name: end for name, end in self.ends.items() if end is not None}


@dataclass(frozen=True)
class Checkpoint:
    """The id and the batches of a query, read from its checkpoint."""

    path: Path
    query_id: str
    planned: tuple[int, ...]  # numbers of the batches that have offsets, ascending
    committed: frozenset[int]
    _read: dict[int, Batch] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the checkpoint in a directory; its batches are read on first use.

        Raises ConfigError if it is not a checkpoint, is not on this machine, or no source of the
        query has format dafka.
        """
        directory = local_path(path)
        if not directory.is_dir():
            raise refused(path, "is not a directory")
        if not (directory / METADATA).is_file():
            raise refused(path, "is not a checkpoint of Spark: it has no file 'metadata'")
        query_id = _object(_read(directory / METADATA)).get("id")
        if not isinstance(query_id, str) or not query_id:
            raise refused(path, "is not a checkpoint: file 'metadata' has no query id")
        planned, committed = (_numbers(directory / name) for name in (OFFSETS, COMMITS))
        found = cls(directory, query_id, tuple(sorted(planned)), frozenset(committed))
        if planned and found.last.ends and not found.last.own_ends:
            raise refused(path, "is of a query without a source of format dafka")
        return found

    @property
    def next_batch(self) -> int:
        """The number of the batch that the query runs, or repeats, when it starts."""
        if not self.planned:
            return 0
        return self.planned[-1] + (self.planned[-1] in self.committed)

    @property
    def is_unfinished(self) -> bool:
        """True if the query repeats its last batch, with the planned offsets, when it starts."""
        return self.next_batch in self.planned

    @cached_property
    def last(self) -> Batch:
        """The newest batch; raises ConfigError if the checkpoint has none."""
        if not self.planned:
            raise refused(self.path, "has no batch yet")
        return self.batch(self.planned[-1])

    def batch(self, number: int) -> Batch:
        """Return a batch; raises ConfigError if it is missing, deleted or cannot be read."""
        if number not in self.planned:
            first, last = (self.planned[0], self.planned[-1]) if self.planned else (0, -1)
            found = f"batches {first} to {last}" if self.planned else "no batch"
            raise refused(self.path, f"has no batch {number}, but {found}")
        if number in self._read:
            return self._read[number]
        version, metadata, lines = self._plan(number)
        if version not in ("v1", "v2"):
            raise refused(
                self.path, f"has offsets of {version[:20]!r}, which this version cannot read"
            )
        numbered = version == "v1"
        texts = dict(enumerate(_split(lines))) if numbered else _by_name(lines)
        ends = {str(name): _offset(text) for name, text in texts.items() if text != _VOID}
        time_ms = _object(metadata).get("batchTimestampMs")
        if type(time_ms) is not int or not 0 <= time_ms <= _LAST_MS:
            time_ms = 0
        while len(self._read) >= _KEPT_BATCHES:
            del self._read[min(self._read)]
        self._read[number] = Batch(number, number in self.committed, time_ms, ends)
        return self._read[number]

    def before(self, number: int) -> Mapping[str, SourceOffset] | None:
        """Return a batch's start offsets by source; None if Spark has deleted them.

        The starts in the end offset of the batch itself take precedence (``SourceOffset.since``).
        """
        if number - 1 in self.planned:
            return self.batch(number - 1).own_ends
        return {} if number == 0 else None

    def ranges(self, number: int) -> Iterator[tuple[str, BatchRange]]:
        """Yield a batch's range of each partition, with its source; raise ConfigError if lost."""
        begins = self.before(number)
        if begins is None:
            raise refused(self.path, f"no longer has the offsets where batch {number} began")
        for name, end in self.batch(number).own_ends.items():
            begin = begins.get(name, SourceOffset({}))
            yield from ((name, each) for each in end.since(begin))

    def source_digest(self, number: int) -> str:
        """Return the SHA-256 of the start and end offsets of a batch in all sources.

        Raises ConfigError if the batch or the one before it is missing.
        """
        if number and number - 1 not in self.planned:
            raise refused(self.path, f"no longer has the offsets where batch {number} began")
        numbers = [number - 1] * (number > 0) + [number]
        texts = [self._plan(each)[2].strip() for each in numbers]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def is_repartition(self, number: int) -> bool:
        """Return whether a batch only cut the query's state into other partitions.

        Spark's offline repartitioning copies the previous plan, even its time, but for the setting
        ``spark.sql.shuffle.partitions``; it reads no source and calls no sink.
        """
        if not {number - 1, number} <= {*self.planned}:
            return False
        (_, before, before_lines), (_, plan, lines) = map(self._plan, (number - 1, number))
        was, now = _object(before), _object(plan)
        has_other_settings = was.pop("conf", None) != now.pop("conf", None)
        return has_other_settings and (was, before_lines.strip()) == (now, lines.strip())

    def _plan(self, number: int) -> tuple[str, str, str]:
        """Return a file of offsets: version, Spark's metadata, and a line for each source."""
        version, _, rest = _read(self.path / OFFSETS / str(number)).partition("\n")
        metadata, _, lines = rest.partition("\n")
        return version, metadata, lines


def refused(path: str | Path, why: str) -> ConfigError:
    """Return the error for a path that is no checkpoint, or a change that is impossible."""
    return ConfigError("checkpoint", str(path), why, kind="argument")


def local_path(text: str) -> Path:
    """Return a path, also of ``file:/...``; raises ConfigError for other file systems."""
    if not text or "\0" in text:
        raise refused(text, "must name a directory")
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() != "file":
        how = "copy the directory to this machine, change it here, and put it back as a whole"
        raise refused(text, f"is not on this machine, but in {found[1]}:; {how}")
    return Path(text[found.end() :])


def _numbers(directory: Path) -> set[int]:
    # Other names are temporary files and checksums.
    names = (each.name for each in directory.iterdir()) if directory.is_dir() else ()
    return {int(name) for name in names if re.fullmatch("[0-9]{1,18}", name)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refused(path.parent, f"has no readable {path.name}: {error}") from None


def _object(text: str) -> dict[str, Any]:
    return json_object(text) or {}


def _by_name(lines: str) -> dict[str, str]:
    # Queries with named sources have a line for each, or one object.
    if lines.startswith("{"):
        return {name: str(text) for name, text in _object(lines).items()}
    return {name: text for name, _, text in (line.partition(":") for line in _split(lines))}


def _split(lines: str) -> list[str]:
    # ``splitlines`` would also split at characters that JSON may contain, such as U+2028.
    return lines.rstrip("\n").split("\n") if lines else []


def _offset(text: str) -> SourceOffset | None:
    tree = _object(text)
    if "version" not in tree or not ({"topics", "start"} <= tree.keys() or "packed" in tree):
        return None
    return SourceOffset.parse(tree)


def sync_checkpoint(location: str, batch: int) -> None:
    """Put the files of a checkpoint on disk that are newer than the plan of the previous batch.

    All files, if the clock was set back since.
    The sink calls this before it commits a batch.  Spark does not sync them: after a power cut it
    would give a batch that the sink has committed other offsets, or miss the state before it.  A
    checkpoint that this machine's file system does not have is left alone.

    Raises OSError if the disk fails.
    """
    try:
        directory = local_path(location).absolute()
    except ConfigError:
        return
    if not (directory / OFFSETS / str(batch)).exists():
        return
    since_ns, planned_ns = (_mtime_ns(directory / OFFSETS / str(n)) for n in (batch - 1, batch))
    if planned_ns < since_ns:
        since_ns = 0
    paths = [f"{folder}/{name}" for folder, _, names in os.walk(directory) for name in ("", *names)]
    if not since_ns:  # Spark may have made the directories above
        paths += [str(parent) for parent in directory.parents if os.access(parent, os.R_OK)]
    for path in paths:
        if _mtime_ns(path) >= since_ns:
            with suppress(FileNotFoundError):  # Spark deletes old files at any time
                sync(Path(path))


def _mtime_ns(path: str | Path) -> int:
    """Return when a file was last modified; 0 if it does not exist."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_mtime_ns  # noqa: PTH116 -- of thousands of files: no Path for each
    return 0


# Changes, each after a backup.  Spark keeps no lock: a query may run if its checkpoint has just
# changed.

TRIES: Final = 3  # attempts to copy a checkpoint that a running query changes


def copied(checkpoint: Checkpoint, to: str, *, is_fork: bool = False) -> Checkpoint:
    """Copy a checkpoint to a new directory in one step, a fork with a query id of its own.

    Raises ConfigError if the directory cannot be used, and DafkaError if the query changes the
    checkpoint all the time, or the disk fails.
    """
    target = local_path(to)
    own = checkpoint.path.resolve()
    if target.resolve().is_relative_to(own):
        raise refused(to, "is, or is in, the checkpoint that is copied")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise refused(to, "exists; name a new directory")
    part = target.resolve().parent / f".{target.name}.{uuid.uuid4().hex}"
    try:
        make_directory(target.resolve().parent)
        _copy(own, part)
        if is_fork:
            path = part / METADATA
            content = json.dumps(_object(_read(path)) | {"id": str(uuid.uuid4())})
            # Spark refuses a file with a wrong checksum, and reads one without.
            for each in checksums(path):
                each.unlink(missing_ok=True)
            path.write_text(content, encoding="utf-8")
        move((part, target.resolve()))
    except OSError as error:
        raise DafkaError(f"checkpoint {own} cannot be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Checkpoint.read(str(target))


def checksums(path: Path) -> tuple[Path, ...]:
    """Return the paths of a file's checksums: Hadoop's and Spark's own."""
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
        f"checkpoint {own} changes while it is copied: its query runs. Stop it first, or try again"
    )


def _files(directory: Path) -> set[tuple[Path, int, int]]:
    found = set()
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            if path.is_file():
                found.add((path.relative_to(directory), status.st_size, status.st_mtime_ns))
    return found


QUIET_S: Final = 60.0  # a query counts as stopped if its checkpoint has not changed for this time

_FULL: Final = ("snapshot", "zip")
_VERSION: Final = re.compile(r"(\d{1,18})(_[^.]+)?\.(snapshot|zip|delta|changelog)")


def rewind(checkpoint: Checkpoint, batch: int, *, is_stopped: bool = False) -> Path:
    """Make a committed batch the last one of its query; return the path of the backup.

    With ``is_stopped`` the caller knows that the query does not run.

    Raises:
        ConfigError: the query may run; the batch is missing or not committed; the query has a
            source of another format, or its state after that batch is deleted.
        DafkaError: the disk fails.  A batch between the two may be the last one then; repeat it.
    """
    _check_quiet(checkpoint, is_stopped)
    target = checkpoint.batch(batch)
    if not target.is_committed:
        raise refused(checkpoint.path, f"has no committed batch {batch}: the query will repeat it")
    if len(target.own_ends) < len(target.ends):
        raise refused(checkpoint.path, "is of a query with sources of other formats: not rewound")
    later = _state_after(checkpoint, batch)
    backup = _backup_path(checkpoint)
    copied(checkpoint, str(backup))
    try:
        # Spark would take a later state for that of a new batch with its number.
        _remove(later)
        for number in sorted({*checkpoint.planned, *checkpoint.committed}, reverse=True):
            if number > batch:  # each step leaves a valid checkpoint
                _remove(checkpoint.path / name / str(number) for name in (COMMITS, OFFSETS))
    except OSError as error:
        raise DafkaError(f"{checkpoint.path} is rewound only in part: {error}") from error
    return backup


def reset(checkpoint: Checkpoint, *, is_stopped: bool = False) -> Path:
    """Move a checkpoint to a backup, so that its query starts as a new one; return the backup.

    Raises ConfigError if the query may run, and DafkaError, with nothing changed, if the directory
    cannot be renamed.
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
    """Return the last committed batch planned until a time (milliseconds since 1970 UTC)."""
    found = (each for each in map(checkpoint.batch, checkpoint.planned) if each.is_committed)
    earlier = [each.number for each in found if each.time_ms <= time_ms]
    if not earlier:
        raise refused(checkpoint.path, "has no committed batch that old")
    return earlier[-1]


def _check_quiet(checkpoint: Checkpoint, is_stopped: bool) -> None:
    if is_stopped:
        return
    folders = (checkpoint.path / name for name in (OFFSETS, COMMITS))
    changed = [each.stat().st_mtime for each in folders if each.exists()]
    ago_s = time.time() - max(changed, default=0.0)
    if ago_s < QUIET_S:
        why = f"changed {max(ago_s, 0.0):.0f} s ago: its query may run, and would not notice"
        cure = f"Stop it and wait for {QUIET_S:.0f} s, or add --stopped if it does not run"
        raise refused(checkpoint.path, f"{why}. {cure}")


def _backup_path(checkpoint: Checkpoint) -> Path:
    own = checkpoint.path.resolve()
    name = f"{own.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(path for path in map(own.with_name, names) if not path.exists())


def _state_after(checkpoint: Checkpoint, batch: int) -> list[Path]:
    """Return the files of later states; raise ConfigError if the state after a batch is gone."""
    last, later = batch + 1, []
    is_full: dict[Path, dict[int, bool]] = {}  # of each store's versions
    for path in (checkpoint.path / STATE).rglob("*"):
        if found := _VERSION.fullmatch(path.name):
            version, known = int(found[1]), is_full.setdefault(path.parent, {})
            known[version] = known.get(version, False) or found[3] in _FULL
            later += [path] if version > last else []
    for store, versions in is_full.items():
        version = last
        while version > 0 and not versions.get(version, True):
            version -= 1
        if version > 0 and version not in versions:
            first = min(versions) - 1
            why = f"no longer has the state after batch {batch}, in {store}: the first is {first}"
            raise refused(checkpoint.path, f"{why}. Rewind to a later batch, or reset it")
    operators = (checkpoint.path / STATE).glob("*/_metadata/v2/*")
    return later + [each for each in operators if each.name.isdecimal() and int(each.name) > batch]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        for each in (path, *checksums(path)):
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)
    os.sync()
