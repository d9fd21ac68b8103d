"""The manifest of a topic's archive: the authoritative list of archived records and their files.

It is a list of commits, each a file with the next number: the files that one writer has added at
once.  A commit appears as a whole or not at all, and two writers cannot have the same number
(link(2) fails if the file exists): the later one reads the earlier one's commit, and adds only
files that are not in it.  So each offset is in one file, however many stores archive a partition.

Its contents may come from anywhere.  It has no paths: they follow from its fields::

    topic=flights/day=2026-01-31/PARTITION-START-END.parquet    records of one partition and day
    _dafka/topic=flights/00000000000000000001.json              the manifest
    _dafka/topic=flights/staged/ID/, ID.lock                    unpublished files, their lock

Spark, Arrow and DuckDB read the first of these as one table (Hive's partition columns), and ignore
names that begin with an underscore.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import filecmp
import os
import re
import shutil
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

import msgspec
import pyarrow as pa
import xxhash
from msgspec import Meta

from dafka_core.errors import DafkaError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import escape, octets_of, quoted, unescape
from dafka_core.model.records import UNKNOWN_US, TopicPartition
from dafka_core.system.files import NO_LINKS, make_directory, move, replace_file, sync

# -- errors ----------------------------------------------------------------------------------------

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(eq=False)
class ArchiveError(DafkaError):
    """A directory of archived records that cannot be read or written."""

    sentence = "archive at {directory}: {why}"
    directory: Path | str
    why: str


def damaged(directory: Path | str, what: Path | str, why: str) -> ArchiveError:
    """Return the error for a damaged file."""
    return ArchiveError(
        directory,
        f"{what}: {why}. It was changed or is damaged: restore it from a copy, or remove the "
        "topic's directories in the archive, also the directory in _dafka",
    )


@contextlib.contextmanager
def translated(directory: Path | str) -> Iterator[None]:
    """Convert errors of the disk to ``ArchiveError``."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(directory, _reason(error)) from error


@contextlib.contextmanager
def reading(directory: Path | str, what: Path | str) -> Iterator[None]:
    """Convert errors of reading a Parquet file to ``ArchiveError``, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise ArchiveError(directory, _reason(error)) from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise damaged(directory, what, f"cannot be read ({error})") from error


def _reason(error: OSError) -> str:
    name = f" ({error.filename})" if error.filename else ""
    reason = f"{error.strerror or error}{name}"
    if error.errno in _FULL:
        return f"the disk is full: {reason}; nothing of this was archived: free some space"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        use = "written to" if error.errno == errno.EROFS else "used"
        return f"it cannot be {use}: {reason}; permit this user to, or name another directory"
    return reason


# -- names of directories and files ----------------------------------------------------------------

MANIFEST: Final = "_dafka"
STAGED: Final = "staged"
COMMIT: Final = "commit"  # of a writer's unpublished files, which becomes part of the manifest
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's null: of records without a time."""

MAX_NAME_BYTES: Final = 255  # of one file or directory, in Linux's file systems

_TOPIC: Final = "topic="
_SPECIAL: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
"""Characters escaped in such names by Spark (``ExternalCatalogUtils``) and Hive."""

_PERCENT: Final = re.compile("%([0-9A-Fa-f]{2})")
_PLAIN: Final = re.compile("[A-Za-z0-9][A-Za-z0-9-]{0,63}")
DAY_US: Final = 86_400_000_000


def make_archive(directory: Path) -> None:
    """Create an empty archive in a directory, if it has none; raise ArchiveError if it cannot be.

    Not the directories above it: that would create an archive below an unmounted disk's mount
    point.
    """
    if directory.is_file():
        why = "it is a file: name a directory, which is created if missing"
        raise ArchiveError(directory, why)
    with translated(directory):
        make_directory(directory / MANIFEST, below=directory.absolute().parent)


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory; none if it is missing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [path.name for path in directory.iterdir()]
    return []


def topic_name(directory: Path | str, topic: str) -> str:
    """Return the name of a topic's directory; raise ArchiveError if it would be too long."""
    name = _TOPIC + _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", escape(topic))
    if len(name.encode()) > MAX_NAME_BYTES:
        why = f"the name of topic {quoted(topic)} is too long for a directory: it is not archived"
        raise ArchiveError(directory, why)
    return name


def topic_of(name: str) -> str | None:
    """Return the topic of a directory's name; None for other directories."""
    shown = _PERCENT.sub(lambda found: chr(int(found[1], 16)), name.removeprefix(_TOPIC))
    with contextlib.suppress(ValueError, ArchiveError):
        topic = unescape(shown)
        return topic if topic and topic_name("", topic) == name else None
    return None


def day_name(day: str | None) -> str:
    """Return the name of a day's directory."""
    return f"day={day or NO_DAY}"


def day_of(time_us: int) -> str | None:
    """Return the day of a time in UTC, like ``2026-01-31``; None outside of the calendar."""
    with contextlib.suppress(OverflowError):
        return (dt.date(1970, 1, 1) + dt.timedelta(days=time_us // DAY_US)).isoformat()
    return None


def day_us(day: str) -> int:
    """Return the time at which a day begins, in microseconds since 1970 UTC."""
    return (dt.date.fromisoformat(day) - dt.date(1970, 1, 1)).days * DAY_US


def file_name(partition: str, start: int, end: int) -> str:
    """Return the name of the file with records ``start`` to ``end`` (exclusive)."""
    name = partition
    if not _PLAIN.fullmatch(partition):
        name = xxhash.xxh3_128_hexdigest(octets_of(partition))
    return f"{name}-{start:019d}-{end:019d}.parquet"


# -- the manifest ----------------------------------------------------------------------------------

VERSION: Final = 2

FOLD: Final = 1_000
"""After this number of commits, another file lists all of their files, for faster reading. The
commits remain: a writer with an older view could otherwise use their numbers again."""

MAX_COMMIT_FILES: Final = 10_000
MAX_COMMIT_BYTES: Final = 32 << 20
"""A commit of this number of files, with the longest names, each byte escaped."""
MAX_FILES: Final = 2_000_000  # files of a topic: a reader of the manifest keeps them in memory

Name = Annotated[str, Meta(min_length=1, max_length=255)]
StagedId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Day = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]

_NAME: Final = re.compile(r"(\d{20})\.json", re.ASCII)
_START: Final = attrgetter("start")
_END: Final = attrgetter("end")


class ArchivedFile(msgspec.Struct, frozen=True):
    """One file: a partition's records from ``start`` to ``end`` (exclusive)."""

    partition: Name
    start: Natural
    end: Natural
    day: Day | None  # UTC, of the greatest time of these and earlier records; None without times
    size_bytes: Natural  # of the file
    least_us: int | None  # the least time, in microseconds since 1970 UTC; None if one has none
    greatest_us: int | None  # the greatest time; None if all have none
    staged: StagedId  # its place before it was published
    life: EpochId = NO_LIFE  # the partition's newest known producer when it was written

    @property
    def name(self) -> str:
        """Return its name in its directory."""
        return file_name(self.partition, self.start, self.end)

    def __post_init__(self) -> None:
        octets_of(self.partition)  # raises ValueError for a name that no partition has
        if self.start >= self.end:
            raise ValueError(f"offsets {self.start} to {self.end} (exclusive) are not a range")
        if self.day:
            day_us(self.day)


class Commit(JsonMessage, frozen=True):
    """Files added at once."""

    what: ClassVar[str] = "commit"
    json_version: ClassVar[int] = VERSION

    topic: Name
    files: Annotated[tuple[ArchivedFile, ...], Meta(min_length=1, max_length=MAX_COMMIT_FILES)]


class Manifest:
    """The archived files of one topic, as far as read.

    Attributes:
        files: of each partition, in the order of their offsets.
        version: the number of the last commit.
    """

    def __init__(self, directory: Path, topic: str) -> None:
        name = topic_name(directory, topic)
        self.directory = directory
        self.topic = topic
        self.records = directory / name
        self.commits = directory / MANIFEST / name
        self.files: dict[str, list[ArchivedFile]] = {}
        self.version = 0
        self._count = 0

    def refresh(self) -> bool:
        """Read new commits; return True if the manifest has changed.

        Raises ArchiveError if the disk fails, or the manifest is damaged.
        """
        before = self.version
        with translated(self.directory):
            names = set(names_in(self.commits))
            last = max((int(name[1]) for name in map(_NAME.fullmatch, names) if name), default=0)
            while self.version < last:
                number, path = self.version + 1, self._commit(self.version + 1)
                if path.name not in names:
                    why = "is missing, but later commits exist"
                    raise damaged(self.directory, path.name, why)
                if (fold := self._fold(number)).name in names:
                    number, path = self.version + FOLD, fold
                self._add(self._read(path))
                self.version = number
        if last < before:
            raise damaged(self.directory, self._commit(before).name, "has disappeared")
        return self.version > before

    def newest_us(self, partition: str, before: int) -> int:
        """Return a time of the day of the last file below an offset, ``UNKNOWN_US`` if none is."""
        days = (each.day for each in self.files.get(partition, ()) if each.end <= before)
        last = max((day for day in days if day), default=None)
        return UNKNOWN_US if last is None else day_us(last)

    def missing(self, partition: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of offsets ``start`` to ``end`` (exclusive) that are in no file."""
        for file in self.between(partition, start, end):
            if file.start > start:
                yield start, file.start
            start = file.end
        if start < end:
            yield start, end

    def between(self, partition: str, start: int, end: int) -> Sequence[ArchivedFile]:
        """Return the files with some of these offsets."""
        files = self.files.get(partition, [])
        return files[bisect_right(files, start, key=_END) : bisect_left(files, end, key=_START)]

    def life_before(self, partition: str, offset: int) -> EpochId:
        """Return the newest life known when the records before an offset were archived."""
        files = self.files.get(partition, [])
        index = bisect_right(files, offset, key=_END)
        return files[index - 1].life if index else NO_LIFE

    def other_records(self, tp: TopicPartition, offset: int) -> ArchiveError:
        """Return the error for a partition of which stores may have other records."""
        why = (
            f"{tp}: from offset {offset} on the archive may have records that the stores have set "
            "aside since, as a newer producer continued without them: nothing is added. Move the "
            f"directories {self.records.name} and {self.commits} away, and archive the topic anew"
        )
        return ArchiveError(self.directory, why)

    def commit(self, files: Sequence[ArchivedFile]) -> bool:
        """Add all files, synced; return False if another writer's commit has the number."""
        made = Commit(self.topic, tuple(files))
        self._check(made)
        target = self._commit(self.version + 1)
        written = self.commits / STAGED / files[0].staged / COMMIT
        with translated(self.directory):
            replace_file(written, made.packed())
            is_ours = self._link(written, target)
            sync(self.commits)
        if is_ours:
            self._add(made)
            self.version += 1
            if self.version % FOLD == 0:
                # The commit is complete: without this file readers only have more to read.
                with contextlib.suppress(OSError, ArchiveError):
                    self._write_fold(written.with_name("fold"))
        return is_ours

    def _write_fold(self, written: Path) -> None:
        first = self.version - FOLD + 1
        commits = [self._read(self._commit(first + each)) for each in range(FOLD)]
        made = Commit(self.topic, tuple(file for commit in commits for file in commit.files))
        packed = made.packed()
        if len(made.files) <= MAX_COMMIT_FILES and len(packed) <= MAX_COMMIT_BYTES:
            replace_file(written, packed)
            os.link(written, self._fold(first))
            sync(self.commits)

    def _link(self, written: Path, target: Path) -> bool:
        try:
            os.link(written, target)
        except FileExistsError:
            # NFS may report that for its own link, if its answer was lost, and it repeated the
            # request.
            return written.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            why = (
                f"its file system does not support hard links ({error.strerror}), which several "
                "writers need: archive to a local directory or NFS, and copy from there"
            )
            raise ArchiveError(self.directory, why) from error
        return True

    def _commit(self, number: int) -> Path:
        return self.commits / f"{number:020d}.json"

    def _fold(self, first: int) -> Path:
        return self.commits / f"{first:020d}-{first + FOLD - 1:020d}.json"

    def _read(self, path: Path) -> Commit:
        with path.open("rb") as file:
            packed = file.read(MAX_COMMIT_BYTES + 1)
        try:
            if len(packed) > MAX_COMMIT_BYTES:
                raise ValueError(f"has more than {MAX_COMMIT_BYTES} bytes")
            made = Commit.parse(packed)
            if made.topic != self.topic:
                raise ValueError(f"is of topic {quoted(made.topic)}")
        except ValueError as error:
            version = getattr(error, "member", "") == "v" and getattr(error, "value", None)
            if isinstance(version, int) and version > VERSION:
                why = (
                    f"{path} was written by a later version (format {version}; this version reads "
                    f"{VERSION}): upgrade this program; the archive is intact"
                )
                raise ArchiveError(self.directory, why) from error
            raise damaged(self.directory, path, str(error)) from error
        return made

    def _check(self, commit: Commit) -> None:
        if self._count + len(commit.files) > MAX_FILES:
            raise ArchiveError(self.directory, f"topic {quoted(self.topic)} has too many files")
        sorted_files = sorted(commit.files, key=attrgetter("partition", "start"))
        for file, follower in zip(sorted_files, (*sorted_files[1:], None), strict=True):
            other = next(iter(self.between(file.partition, file.start, file.end)), follower)
            if other and other.partition == file.partition and other.start < file.end:
                why = f"{file.name} and {other.name} have the same offsets"
                raise damaged(self.directory, self.commits, why)

    def _add(self, commit: Commit) -> None:
        self._check(commit)
        self._count += len(commit.files)
        for file in commit.files:
            files = self.files.setdefault(file.partition, [])
            files.insert(bisect_left(files, file.start, key=_START), file)


# -- staged files: written, then named in the manifest, then published -----------------------------

# A writer has a directory of its own for them, and locks it and a file beside it: over NFS, other
# machines see only the file's lock.  Locks end with the process, so another writer can recognise a
# dead one's files: those in the manifest are published, others are removed.

_ID: Final = re.compile("[0-9a-f]{32}")


class Staging:
    """A directory for one writer's files of one topic; ``id`` is its name.

    At the end, also after an error, files in the manifest are published, and the others removed.
    """

    id: str
    directory: Path

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with translated(self._manifest.directory):
            while True:
                self.id = uuid.uuid4().hex
                self.directory = staged_directory(self._manifest, self.id)
                make_directory(self.directory, below=self._manifest.directory)
                # Another writer may remove it as a dead one's before it is locked.
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    self._locks.enter_context(_locked(self.directory))
                    return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._locks:
            if kind is None:
                _settle(self._manifest, self.id)
            else:
                # The original error must be raised; the next writer finishes this, too.
                with contextlib.suppress(Exception):
                    _settle(self._manifest, self.id)

    def add(self, made: Sequence[tuple[Path, ArchivedFile]]) -> None:
        """Stage finished files, synced; the manifest may name them then."""
        with translated(self._manifest.directory):
            move(*((path, staged_path(self._manifest, file)) for path, file in made))


def staged_directory(manifest: Manifest, staged: str) -> Path:
    """Return the directory of one writer's unpublished files."""
    return manifest.commits / STAGED / staged


def staged_path(manifest: Manifest, file: ArchivedFile) -> Path:
    """Return the path of an unpublished file, under a name that readers ignore."""
    return staged_directory(manifest, file.staged) / f"{file.name}.staged"


def path_of(manifest: Manifest, file: ArchivedFile) -> Path:
    """Return the path of a published file."""
    return manifest.records / day_name(file.day) / file.name


def recover(manifest: Manifest) -> None:
    """Publish or remove the files of killed writers."""
    with translated(manifest.directory):
        for name in filter(_ID.fullmatch, names_in(manifest.commits / STAGED)):
            with contextlib.ExitStack() as locks:
                try:
                    locks.enter_context(_locked(staged_directory(manifest, name)))
                except OSError:
                    continue  # its writer is alive, has just ended, or the file system has no locks
                _settle(manifest, name)


def _settle(manifest: Manifest, staged: str) -> None:
    """Publish a writer's files that the manifest has, synced, and remove its directory."""
    # A commit that the disk has reported as failed may exist; under the lock none is added.
    manifest.refresh()
    directory = staged_directory(manifest, staged)
    with translated(manifest.directory):
        left = {path.name for path in directory.iterdir()}
        files = (file for files in manifest.files.values() for file in files) if left else ()
        own = [file for file in files if file.staged == staged]
        if not own and COMMIT in left and (directory / COMMIT).stat().st_nlink > 1:
            return  # NFS shows the manifest as it was a moment ago, without this commit
        pairs = ((staged_path(manifest, file), path_of(manifest, file)) for file in own)
        links = [(made, path) for made, path in pairs if made.name in left]
        days = {path.parent for _, path in links}
        for day in days:
            make_directory(day, below=manifest.directory)
        for made, path in links:
            # A rename could lose both names in a power cut. The staged one is removed afterwards.
            try:
                os.link(made, path)
            except FileExistsError:  # from a writer that was killed after this
                if not filecmp.cmp(made, path, shallow=False):
                    why = (
                        f"{path} has other records: it is not in the manifest, which was perhaps "
                        "removed. Move it away; the next writer puts the archived ones there"
                    )
                    raise ArchiveError(manifest.directory, why) from None
        for day in days:
            sync(day)
        shutil.rmtree(directory)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the locks of an existing directory.

    Raises FileNotFoundError or BlockingIOError if it is gone or locked, and another OSError if the
    file system has no locks, so that its files are never taken over.
    """
    lock = directory.with_name(f"{directory.name}.lock")
    with contextlib.ExitStack() as opened:
        for path, flags in (directory, os.O_RDONLY), (lock, os.O_RDWR | os.O_CREAT):
            descriptor = os.open(path, flags, 0o666)
            opened.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            directory.stat()  # its previous owner may have removed it
            yield
        finally:
            with contextlib.suppress(OSError):
                if not directory.exists():
                    lock.unlink()
