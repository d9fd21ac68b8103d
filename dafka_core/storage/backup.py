"""A backup of a store: one LMDB file and a manifest, complete or absent.

    backup.mdb     the tables of a store's log (``log.py``); after an earlier backup only newer
                   blocks
    backup.json    the backup's description, and the file's size and checksum (xxh3, 128 bits)

It is written under another name, in the same directory, and renamed when it is on disk.  No store
opens it: it is restored into a directory of its own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
import xxhash

from dafka_core.errors import StoreError
from dafka_core.model.epochs import Epoch, prefix
from dafka_core.storage.block import Block
from dafka_core.storage.environment import DEFAULT_MAP_BYTES
from dafka_core.storage.open_environment import FORMAT, Opened, environment, open_tables
from dafka_core.storage.rows import LAST_OFFSET, PartitionRow, partition_key
from dafka_core.storage.set_aside import AsideArea
from dafka_core.storage.storage_errors import BACKUP_MANIFEST, DATA_FILE, translated
from dafka_core.storage.tables import MARKS, Tables
from dafka_core.system.files import OWNERS_ALONE, make_directory, move

# The entries of a log that a backup copies: all at one moment, or the newer ones.
#
# An incremental backup copies the tables of rows and of notes completely, since they are small, and
# of each partition the blocks with records that the earlier backup lacks. Blocks change only by
# records added at their end, by merging, which preserves the records, and when records are set
# aside; then the histories differ, and all blocks of the partition are copied, as are those of
# records set aside. So they are if another log has taken the address: its ids are of other
# partitions.
#
# The first entry belongs to no table and describes the others, and the last one has their number.

META, PARTITIONS, BLOCKS, FACTS = range(4)
"""The tables' numbers, and that of the entries which are in none."""


class Entry(NamedTuple):
    """An entry of a table; ``value`` is valid until the next one is read."""

    table: int
    key: bytes
    value: memoryview


class Known(NamedTuple):
    """An earlier backup's records of a partition, by its id: all blocks up to ``end``.

    ``history`` identifies the partition, and the history of these records.
    """

    id: int
    end: int
    history: str


def entries(
    tables: Tables, known: Mapping[int, Known], facts: Mapping[str, Any]
) -> Iterator[Entry]:
    """Yield the entries for a backup; ``facts`` are added to the first entry."""
    count, starts = 0, {}
    for row in tables.all_rows():
        if row.id in known:
            end = known[row.id].end
            same = history_text(tables, row, end) == known[row.id].history
            starts[row.id] = end if same and end <= row.end else 0
    whole = sorted(each for each, start in starts.items() if start < known[each].end)
    yield _fact(b"first", {**facts, "format": FORMAT, "whole": whole})
    for table in (META, PARTITIONS):
        for key, value in tables.entries(table):
            if not key.startswith(MARKS):  # blocks of an earlier backup are as they were then
                yield Entry(table, key, value)
                count += 1
    for partition_id in tables.ids_with_blocks():
        for found in tables.blocks_reaching(partition_id, starts.get(partition_id, 0)):
            yield Entry(BLOCKS, found.key, found.packed)
            count += 1
    yield _fact(b"last", {"entries": count})


def known_of(tables: Tables) -> list[Known]:
    """Return a backup's records of each partition, for the next one.

    The next one has the blocks from a damaged one on again: the store may have replaced that.
    """
    found = []
    for row in tables.all_rows():
        end = _end_of_blocks(tables, row)
        for each in tables.blocks_from(row.id, 0, end):
            try:
                Block.parse(each.packed)
            except ValueError:
                end = each.first
                break
        found.append(Known(row.id, end, history_text(tables, row, end)))
    return found


def _end_of_blocks(tables: Tables, row: PartitionRow) -> int:
    """Return the end of a partition's records that are in the table of blocks."""
    grouped = tables.area.of_partition(row.id)
    return min([each.first for each in grouped if each.end > row.earliest] + [row.end])


def history_text(tables: Tables, row: PartitionRow, end: int) -> str:
    """Return the text that identifies a partition, and its history before an offset."""
    history = prefix(tables.lives.history(row), end)
    name = partition_key(row.tp)
    return xxhash.xxh3_64_hexdigest(b"".join((*map(Epoch.packed, history), name)))


def fact(entry: Entry) -> dict[str, Any]:
    """Parse the first or the last entry; raise ValueError if it is another one."""
    found = json.loads(bytes(entry.value))
    if entry.table != FACTS or not isinstance(found, dict):
        raise ValueError("it does not begin, or end, as a store's entries do")
    return found


def _fact(key: bytes, facts: Mapping[str, Any]) -> Entry:
    return Entry(FACTS, key, memoryview(json.dumps(facts).encode()))


BACKUP_FILE: Final = "backup.mdb"

VERSION: Final = 1

_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY, errno.EXDEV)
"""Errors of a directory's move to a name that something else has, or where a disk is mounted."""

TXN_BYTES: Final = 32 << 20  # bytes written before a sync: LMDB keeps them in memory until then


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup's description of itself."""

    v: int
    id: str
    store: str
    time: str
    dafka: str
    format: int
    entries: int
    file_bytes: int
    checksum: str
    previous: str = ""  # the id of the backup that it continues; empty if it is complete
    previous_at: str = ""  # the path to that, relative to this one
    whole: tuple[int, ...] = ()  # ids of partitions of which it has all blocks nevertheless


class Backup:
    """An existing backup; StoreError if the directory has none that this program can read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = directory / BACKUP_MANIFEST
        try:
            self.manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            why = f"it is not a backup: it has no file {BACKUP_MANIFEST}"
            raise StoreError(directory, why) from None
        except (OSError, ValueError) as error:
            raise StoreError(directory, f"file {BACKUP_MANIFEST}: {error}") from error
        found = self.manifest
        if found.v != VERSION or found.format != FORMAT:
            why = (
                f"the backup has format {found.v} and its log format {found.format}, by Dafka "
                f"{found.dafka}; this program reads formats {VERSION} and {FORMAT}: restore it "
                "with that version of Dafka"
            )
            raise StoreError(directory, why)

    def check_file(self) -> None:
        """Raise StoreError if its file is not the original one."""
        path = self.directory / BACKUP_FILE
        with translated(self.directory):
            found = _checksum(path), path.stat().st_size
        if found != (self.manifest.checksum, self.manifest.file_bytes):
            why = f"file {BACKUP_FILE} has changed since it was written: create a new backup"
            raise StoreError(self.directory, why)

    def chain(self) -> list[Self]:
        """Return this backup and its predecessors, the complete one first.

        Raises StoreError if one is neither at its path nor beside the one that continues it.
        """
        found = [self]
        while found[0].manifest.previous:
            found.insert(0, found[0].previous())
        return found

    def known(self) -> list[Known]:
        """Return the records of each partition in it and its predecessors."""
        with self.reading() as tables:
            return known_of(tables)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tables]:
        """Open its tables; those of blocks have only the difference to its predecessor."""
        path = self.directory / BACKUP_FILE
        try:
            with _opened(path, readonly=True) as opened, opened.env.begin(buffers=True) as txn:
                yield Tables(opened, txn)
        except ValueError as error:
            why = f"{error}: file {BACKUP_FILE} and its checksum were changed: create a new backup"
            raise StoreError(self.directory, why) from error

    def previous(self) -> Self:
        """Return the predecessor; see ``chain``."""
        wanted = self.manifest.previous
        nearby = [self.directory / self.manifest.previous_at]
        with contextlib.suppress(OSError):  # the directory above may be unreadable
            nearby += self.directory.absolute().parent.iterdir()
        for each in nearby:
            with contextlib.suppress(StoreError, OSError):
                found = type(self)(each)
                if found.manifest.id == wanted:
                    return found
        why = (
            f"it continues backup {wanted}, which is neither at {self.manifest.previous_at} nor "
            "beside this one: move it back there"
        )
        raise StoreError(self.directory, why)


def write_backup(
    directory: Path, found: Iterable[Entry], *, store: str, previous: Backup | None
) -> Manifest:
    """Write a backup from a log's entries; the directory is complete afterwards or does not exist.

    Raises StoreError if it is not empty, the disk is full, or the entries are invalid.
    """
    with made_whole(directory) as made, translated(directory):
        with _opened(made / BACKUP_FILE) as opened:
            try:
                facts = _written(opened, iter(found))
            except (ValueError, KeyError, TypeError) as error:
                why = f"the store sent an invalid backup ({error}): try again"
                raise StoreError(directory, why) from error
        path = made / BACKUP_FILE
        at = ""
        if previous is not None:  # the system follows links before it goes up
            at = os.path.relpath(*map(os.path.realpath, (previous.directory, directory)))
        now = dt.datetime.now(dt.UTC)
        manifest = Manifest(
            v=VERSION,
            id=secrets.token_hex(16),
            store=store,
            time=now.isoformat(timespec="seconds"),
            file_bytes=path.stat().st_size,
            checksum=_checksum(path),
            previous="" if previous is None else previous.manifest.id,
            previous_at=at,
            **facts,
        )
        (made / BACKUP_MANIFEST).write_bytes(msgspec.json.encode(manifest) + b"\n")
    return manifest


@contextlib.contextmanager
def restored(chain: list[Backup], directory: Path) -> Iterator[Path]:
    """Create a log's directory from a chain of backups; the end of the block gives it its name.

    Raises StoreError if it is not empty, a backup is damaged, or the disk is full.
    """
    with made_whole(directory) as made:
        for each in chain:
            each.check_file()
        with translated(directory):
            shutil.copyfile(chain[0].directory / BACKUP_FILE, made / DATA_FILE)
            with _opened(made / DATA_FILE) as opened:
                for before, after in pairwise(chain):
                    _go_on(opened, before, after)
        yield made


@contextlib.contextmanager
def made_whole(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory, which becomes ``directory`` at the end, or is removed.

    Raises StoreError if ``directory`` is not empty, or cannot be created.
    """
    directory = Path(os.path.realpath(directory))
    made = directory.parent / f".{directory.name}.{secrets.token_hex(4)}.partial"
    try:
        with translated(directory):
            make_directory(made, OWNERS_ALONE)
            if directory.exists():  # tried before anything is copied
                _move(made, directory)
                make_directory(made, OWNERS_ALONE)
        yield made
        with translated(directory):
            _move(made, directory)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _move(made: Path, directory: Path) -> None:
    try:
        move((made, directory))
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        is_empty = directory.is_dir() and not any(directory.iterdir())
        why = "a disk is mounted there" if is_empty else "it exists and is not empty"
        raise StoreError(directory, f"{why}: name another directory") from None


@contextlib.contextmanager
def _opened(path: Path, *, readonly: bool = False) -> Iterator[Opened]:
    """Open a file's tables without a list of readers: no other process has it."""
    size_bytes = path.stat().st_size if path.exists() else 0
    with (
        translated(path.parent),
        environment(
            path,
            size_bytes if readonly else DEFAULT_MAP_BYTES,
            subdir=False,
            lock=False,
            readonly=readonly,
        ) as env,
    ):
        yield open_tables(env, path.parent)


def _written(opened: Opened, found: Iterator[Entry]) -> dict[str, Any]:
    """Write entries; return what a manifest says about them."""
    first = fact(next(found, Entry(META, b"", memoryview(b""))))
    if first["format"] > FORMAT:
        why = f"the store's log has format {first['format']}: use the store's version of Dafka"
        raise StoreError(opened.directory, why)
    count, last = _put(opened, found)
    if last is None:
        raise ValueError("its end is missing")
    if last["entries"] != count:
        raise ValueError(f"{count} entries came of {last['entries']}")
    facts = {name: first[name] for name in ("dafka", "format", "whole")}
    return facts | {"entries": count}


def _put(opened: Opened, found: Iterator[Entry]) -> tuple[int, dict[str, Any] | None]:
    """Write entries up to the last one; return their number, and the last one's facts."""
    tables = {META: opened.meta, PARTITIONS: opened.partitions, BLOCKS: opened.blocks}
    count = 0
    while True:
        size_bytes = 0
        with opened.env.begin(write=True) as txn:
            for entry in found:
                if entry.table == FACTS:
                    return count, fact(entry)
                # In the order of their keys, except for the few that the empty file has already.
                txn.put(entry.key, entry.value, db=tables[entry.table])
                count, size_bytes = count + 1, size_bytes + len(entry.value) + 64
                if size_bytes >= TXN_BYTES:
                    break
            else:
                return count, None


def _go_on(opened: Opened, before: Backup, after: Backup) -> None:
    with before.reading() as old:  # each reports damage by its own name
        known = {row.id: _end_of_blocks(old, row) for row in old.all_rows()}
    with after.reading() as new:
        earliest = {row.id: row.earliest for row in new.all_rows()}
        earliest |= {each.id: each.earliest for each in AsideArea(new).rows()}
        firsts = {each: next(new.firsts(each, 0)) for each in new.ids_with_blocks()}
        continued = {row.id for row in new.all_rows()}.difference(after.manifest.whole)
        ends = {each: end for each, end in known.items() if each in continued}
        with opened.env.begin(write=True, buffers=True) as txn:
            tables = Tables(opened, txn)
            for each in list(tables.ids_with_blocks()):
                end = ends.get(each, 0)
                start = min(firsts.get(each, end), end)
                tables.delete_blocks(each, list(tables.firsts(each, start)))
            for table in (opened.meta, opened.partitions):
                txn.drop(table, delete=False)
        found = (Entry(number, *each) for number in range(FACTS) for each in new.entries(number))
        _put(opened, found)
    with opened.env.begin(write=True, buffers=True) as txn:
        _drop_given_up(Tables(opened, txn), earliest)


def _drop_given_up(tables: Tables, earliest: dict[int, int]) -> None:
    for partition_id in list(tables.ids_with_blocks()):
        start = earliest.get(partition_id, LAST_OFFSET)
        # A block that ends below would count as the predecessor of the next records.
        held = next(tables.blocks_reaching(partition_id, start), None)
        end = held.first if held else LAST_OFFSET
        given_up = [first for first in tables.firsts(partition_id, 0) if first < end]
        tables.delete_blocks(partition_id, given_up)


def _checksum(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
