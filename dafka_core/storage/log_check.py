"""Checks of a log: its tables and blocks, and its records against their links.

Each block is copied and checked, and every record of a partition's row must be in one.  A read
transaction lasts for some blocks only, so that a store may run meanwhile: LMDB keeps the pages that
appends and merging free for as long as one lasts.  If LMDB finds a damaged page of a tree it reads
nothing more in that transaction, so the check continues after the page in the next one.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from typing import Annotated, Final, NamedTuple, Self

import lmdb
from msgspec import Meta
from msgspec.structs import astuple

from dafka_core.errors import StoreError
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import Block
from dafka_core.storage.linker import LinkedRecords
from dafka_core.storage.links import GENESIS, Link, LinkDigest, life_at
from dafka_core.storage.rows import PartitionRow, tp_of_key
from dafka_core.storage.set_aside import AsideArea
from dafka_core.storage.tables import Tables

ROW: Final = "row"  # a partition's row, without which its records are not found
BLOCK: Final = "block"  # its content has changed
HOLE: Final = "hole"  # records that are in no block
EPOCHS: Final = "epochs"  # histories
STAGED: Final = "staged"
ASIDE: Final = "aside"
NOTES: Final = "notes"
UNKNOWN: Final = "unknown"  # blocks that belong to no partition
CHANGED: Final = "changed"  # records differ from the written ones, but checksums match
LINKS: Final = "links"  # damaged links
REPLACED: Final = "replaced"  # the producer's history differs since the links were saved
DIFFERENT: Final = "different"  # between two stores
PARTED: Final = "parted"  # the histories of two stores have diverged
PAGE: Final = "page"  # a page of the file cannot be read: the offset is the file's


class Damage(NamedTuple):
    """A damage: its kind, the partition and an offset (empty, 0 if none), and the reason."""

    kind: str
    topic: str
    partition: str
    offset: int
    why: str


class Checked(JsonMessage, frozen=True, rename={"size_bytes": "bytes"}):
    """The result of one transaction's checks, or of several."""

    partitions: Natural = 0
    records: Natural = 0
    blocks: Natural = 0
    size_bytes: Natural = 0
    found: tuple[Damage, ...] = ()
    linked: Natural = 0  # records that match their links

    def plus(self, other: Checked) -> Checked:
        """Return the sum of both."""
        return Checked(*map(operator.add, astuple(self), astuple(other)))


OpenTables = Callable[[], AbstractContextManager[Tables]]
"""Opens a log's tables at the time of the call."""

# Compares records with their links (``links.py``), and links with saved ones.
#
# ``check_links`` detects changes in the file after which only the checksums were recomputed.
# ``check_saved`` also detects recomputed links: a link out of the attacker's reach covers all links
# before it. ``differences`` compares two stores, and reads no record.

STEP_BYTES: Final = 64 << 20
"""Bytes compared with links in one transaction: some hundredths of a second."""

_CURE: Final = (
    "compare with another store ('dafka store verify --beside'); if that store is right, create "
    "this store's directory anew from it (docs/backup.md)"
)

_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Life = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class PartitionLink(NamedTuple):
    """A saved link: digests, and the history's identifier, as hex."""

    topic: str
    partition: str
    start: _Offset
    end: _Offset
    life: _Life
    records: _Digest
    chain: _Digest

    @classmethod
    def of(cls, tp: TopicPartition, link: Link) -> Self:
        """Return the saved form of a link."""
        life = f"{link.life:016x}"
        return cls(*tp, link.start, link.end, life, link.records.hex(), link.chain.hex())

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def range(self) -> str:
        """Describe its records for a sentence."""
        return f"records {self.start} to {self.end - 1}"


def links_of(open_tables: OpenTables, tp: TopicPartition, *, newest: bool) -> list[PartitionLink]:
    """Return the links of a partition, or only the last one."""
    with open_tables() as tables:
        row = tables.visible_row(tp)
        if row is None:
            return []
        found = [tables.links.last(row.id)] if newest else tables.links.starting(row.id, 0)
        # Damaged ones have no digests.
        return [PartitionLink.of(tp, each) for each in found if each and each.chain]


def check_links(open_tables: OpenTables, tp: TopicPartition) -> Iterator[Checked]:
    """Compare the records of a partition with its links, and those with each other."""
    at: int | None = 0
    while at is not None:
        try:
            with open_tables() as tables:
                row = tables.visible_row(tp)
                at, checked = (None, Checked()) if row is None else _check_from(tables, row, at)
        except StoreError as error:
            at, checked = None, _found(LINKS, tp, 0, error.why)
        yield checked


def _check_from(tables: Tables, row: PartitionRow, at: int) -> tuple[int | None, Checked]:
    """Check some links; return the start of the next one to check, None at the end."""
    previous, size_bytes, linked = tables.links.last(row.id, at), 0, 0
    tp, found = row.tp, list[Damage]()
    records: LinkedRecords | None = None
    for link in tables.links.starting(row.id, at):
        if size_bytes >= STEP_BYTES:
            return link.start, Checked(found=tuple(found), linked=linked)
        size_bytes += link.size_bytes
        if link.end > row.end:
            why = f"it ends here, but has a link of records up to {link.end - 1}"
            found.append(Damage(CHANGED, *tp, row.end, f"{why}: {_CURE}"))
            break
        damage = _out_of_chain(row, link, previous)
        if damage is None and link.start >= row.earliest:
            records = records or LinkedRecords(tables, row, link.start)
            try:
                damage = _changed(records, tp, link)
            except StoreError:
                records = None  # a damaged block, reported as such
            else:
                linked += 0 if damage else link.end - link.start
        if damage is not None:
            found.append(damage)
            records = None
        previous = link
    return None, Checked(found=tuple(found), linked=linked)


def _out_of_chain(row: PartitionRow, link: Link, previous: Link | None) -> Damage | None:
    """Return the damage of a link itself.  The predecessor of trimmed records' link is deleted."""
    if link.start < row.earliest:
        return None
    end, chain = (previous.end, previous.chain) if previous else (0, GENESIS)
    if link.start != end and not end <= link.start == row.earliest:
        why = f"the link of records before {link.start} is missing: it was removed"
        return Damage(LINKS, *row.tp, end, f"{why}; {_CURE}")
    if not link.follows(chain):
        why = f"the link of records {link.start} to {link.end - 1}, or the previous, was changed"
        return Damage(LINKS, *row.tp, link.start, f"{why}; {_CURE}")
    return None


def _changed(records: LinkedRecords, tp: TopicPartition, link: Link) -> Damage | None:
    digest = LinkDigest(tp, link.start, GENESIS)
    records.fill(digest, link.end, full=False)
    made = digest.link(link.life)
    if (made.records, made.times) == (link.records, link.times):
        return None
    what = "a record" if made.records != link.records else "the timestamp of a record"
    why = f"{what} of {link.start} to {link.end - 1} was changed in the file, and its checksum"
    return Damage(CHANGED, *tp, link.start, f"{why}: {_CURE}")


def check_saved(open_tables: OpenTables, saved: PartitionLink) -> Checked:
    """Compare a saved link; ``linked`` is 0 if the partition's first record was trimmed since."""
    tp = saved.tp
    with open_tables() as tables:
        row = tables.visible_row(tp)
        if row is not None and saved.start < row.earliest:
            return Checked()
        why = f"it ends here, but had {saved.range}"
        if row is not None and saved.end <= row.end:
            previous = tables.links.last(row.id, saved.start)
            digest = LinkDigest(tp, saved.start, previous.chain if previous else GENESIS)
            try:
                LinkedRecords(tables, row, saved.start).fill(digest, saved.end, full=False)
            except StoreError as error:
                return _found(BLOCK, tp, saved.start, error.why)
            made = PartitionLink.of(tp, digest.link(int(saved.life, 16)))
            if made == saved:
                return Checked(linked=saved.end - saved.start)
            what = saved.range if made.records != saved.records else f"records before {saved.end}"
            why = f"{what}, or their times, do not match the saved link"
        life = 0
        with suppress(StoreError):  # of a damaged history, which is reported elsewhere
            life = life_at(tables.lives.history(row), saved.end) if row else 0
        asides = (each for each in AsideArea(tables).rows() if each.tp == tp)
        is_other = f"{life:016x}" != saved.life or any(each.earliest < saved.end for each in asides)
    if is_other:
        why += (
            ": if another producer's records have replaced them, they are set aside ('dafka store "
            "aside'), and you must save the links again; otherwise they were changed"
        )
        return _found(REPLACED, tp, saved.start, why)
    return _found(CHANGED, tp, saved.start, f"{why}: {_CURE}")


def _found(kind: str, tp: TopicPartition, offset: int, why: str) -> Checked:
    return Checked(found=(Damage(kind, *tp, offset, why),))


def differences(
    here: Iterable[PartitionLink], there: Iterable[PartitionLink]
) -> tuple[int, list[Damage]]:
    """Return the number of records with equal links in two stores, and the first differences."""
    others = {(each.tp, each.start, each.end): each for each in there}
    same, found = 0, dict[TopicPartition, Damage]()
    for link in here:
        other = others.get((link.tp, link.start, link.end))
        if other is None or link.tp in found:
            continue
        if link.records == other.records:
            same += link.end - link.start
        elif link.life != other.life and int(link.life, 16) and int(other.life, 16):
            why = f"{link.range} are of different producers: the stores resolve this on contact"
            found[link.tp] = Damage(PARTED, *link.tp, link.start, why)
        else:
            why = f"{link.range} differ: 'dafka store verify' at both shows where they were changed"
            found[link.tp] = Damage(DIFFERENT, *link.tp, link.start, why)
    return same, list(found.values())


_NOWHERE: Final = TopicPartition("", "")

STEP_BLOCKS: Final = 64


def check(open_tables: OpenTables) -> Iterator[Checked]:
    """Check a log in many short transactions; it may be written meanwhile."""
    for tp in _rows(open_tables)[0]:
        yield from check_partition(open_tables, tp)
    yield from check_rest(open_tables)  # at the end: LMDB may abort in a damaged tree


def check_rest(open_tables: OpenTables) -> Iterator[Checked]:
    """Check everything except partitions' records: rows, notes, records set aside."""
    aside = list[PartitionRow]()
    _, found = _rows(open_tables)
    with _noting(open_tables, ASIDE, _NOWHERE, found) as tables:
        aside = list(AsideArea(tables).rows())
    if not found:  # otherwise blocks of an unreadable row would count as unknown
        with _noting(open_tables, BLOCK, _NOWHERE, found) as tables:
            found.extend(_unknown(tables))
    with _noting(open_tables, NOTES, _NOWHERE, found) as tables:
        tables.notes.named("")
    yield Checked(found=tuple(found))
    for each in aside:
        yield from _set_aside(open_tables, each)


def check_blocks(tables: Tables) -> Iterator[Checked]:
    """Check only each block itself, if other blocks are elsewhere."""
    for _, packed in tables.entries(2):
        try:
            yield Checked(0, Block.copied(packed).count, 1, len(packed))
        except ValueError as error:
            yield Checked(found=(Damage(BLOCK, "", "", 0, str(error)),))


@contextmanager
def _noting(
    open_tables: OpenTables, kind: str, tp: TopicPartition, found: list[Damage]
) -> Iterator[Tables]:
    try:
        with open_tables() as tables:
            yield tables
    except StoreError as error:
        found.append(Damage(kind, *tp, 0, error.why))


def _rows(open_tables: OpenTables) -> tuple[list[TopicPartition], list[Damage]]:
    good, damaged = list[TopicPartition](), list[Damage]()
    with _noting(open_tables, ROW, _NOWHERE, damaged) as tables:
        for key, value in tables.entries(1):
            tp = tp_of_key(key)
            try:
                PartitionRow.parse(tp, key, value)
                good.append(tp)
            except ValueError as error:
                damaged.append(Damage(ROW, *tp, 0, str(error)))
        tables.check_count(len(good) + len(damaged))
    return good, damaged


def check_partition(open_tables: OpenTables, tp: TopicPartition) -> Iterator[Checked]:
    """Check the records of a partition, from its earliest one on; staged ones; its links."""
    yield from check_records(open_tables, tp)
    found: list[Damage] = []
    with _noting(open_tables, STAGED, tp, found) as tables:
        row = tables.row(tp)
        if row is None:
            return
        found.extend(_epochs(tables, row))
        found.extend(_staged(tables, row))
    yield Checked(partitions=1, found=tuple(found))
    yield from check_links(open_tables, tp)


def check_records(open_tables: OpenTables, tp: TopicPartition) -> Iterator[Checked]:
    """Check the records of a partition, from its earliest one on."""
    offset: int | None = 0
    while offset is not None:
        try:
            with open_tables() as tables:
                row = tables.row(tp)
                if row is None or (offset := max(offset, row.earliest)) >= row.end:
                    return
                following, checked = _stretch(tables, row, offset)
        except StoreError as error:
            following, checked = None, _found(BLOCK, tp, offset, error.why)
        yield checked
        if following is None:
            following = _after_damage(open_tables, tp, checked.found[0].offset)
        offset = following


def _after_damage(open_tables: OpenTables, tp: TopicPartition, offset: int) -> int | None:
    """Return the first block after a damaged page that can be found from the end, if any."""
    start = None
    with suppress(StoreError), open_tables() as tables:
        if row := tables.row(tp):
            grouped = (each.first for each in tables.area.readable(row.id))
            start = min((each for each in grouped if each > offset), default=row.end)
            while (found := tables.last_block(row.id, start - 1)) and found.first > offset:
                start = found.first
    return start


def _stretch(tables: Tables, row: PartitionRow, offset: int) -> tuple[int | None, Checked]:
    """Check some blocks from an offset on; return the next start, None if LMDB failed."""
    tp, start, blocks, size_bytes = row.tp, offset, 0, 0
    try:
        between = tables.blocks_between(row, offset, row.end, STEP_BLOCKS, STEP_BYTES)
        for found in between:
            block = tables.read_block(tp, found, Block.copied)
            offset, blocks = found.first + block.count, blocks + 1
            size_bytes += len(found.packed)
    except StoreError as error:
        # The block there may be good, and the next one missing.
        hole = _hole(tables, row, offset)
        if hole is not None and hole > offset:
            offset, blocks = hole, blocks + 1
            damage = Damage(HOLE, *tp, offset, f"no block has offset {offset}")
        else:
            damage = Damage(BLOCK if hole is None else HOLE, *tp, offset, error.why)
        done = Checked(0, offset - start, blocks, size_bytes, (damage,))
        return next_start(tables, row, offset), done
    except (lmdb.Error, struct.error) as error:
        damage = Damage(BLOCK, *tp, offset, f"a page of the tree is damaged: {error}")
        return None, Checked(0, offset - start, blocks, size_bytes, (damage,))
    return offset, Checked(0, offset - start, blocks, size_bytes)


def _hole(tables: Tables, row: PartitionRow, offset: int) -> int | None:
    """Return the first offset at or after ``offset`` that no block has; None if one is damaged."""
    found = tables.last_block(row.id, offset)
    with suppress(ValueError):
        if found is None or found.end <= offset:
            return None if tables.area.find(row.id, offset) else offset
        end = found.first + Block.copied(found.packed).count
        return end if end <= row.end else None
    return None


def next_start(tables: Tables, row: PartitionRow, offset: int) -> int:
    """Return the start of the first block after an offset, or else the partition's end."""
    starts = [each.first for each in tables.area.readable(row.id) if each.first > offset]
    return min(next(tables.firsts(row.id, offset + 1), row.end), *starts, row.end)


def _epochs(tables: Tables, row: PartitionRow) -> Iterator[Damage]:
    tp = row.tp
    try:
        history = tables.lives.history(row)
    except StoreError as error:
        yield Damage(EPOCHS, *tp, 0, error.why)
        return
    for before, after in pairwise(history):
        if before.start > after.start or before.life >= after.life:
            why = f"the producer's life from offset {after.start} does not follow the previous life"
            yield Damage(EPOCHS, *tp, after.start, why)
    if history and history[-1].start > row.end:
        why = f"the producer's newest life begins at {history[-1].start}, after the end {row.end}"
        yield Damage(EPOCHS, *tp, history[-1].start, why)


def _staged(tables: Tables, row: PartitionRow) -> Iterator[Damage]:
    if row.staged is None:
        return
    offset = row.end
    for first in tables.firsts(row.id, row.end):
        packed = tables.packed_block(row.id, first)
        assert packed is not None
        try:
            if first != offset:
                raise ValueError(f"the next staged block begins at {first}")
            offset += Block.copied(packed).count
        except ValueError as error:
            yield Damage(STAGED, *row.tp, offset, str(error))
            return
    if offset != row.staged.end:
        why = f"staged records end at {offset}, not at {row.staged.end}"
        yield Damage(STAGED, *row.tp, offset, why)


def _unknown(tables: Tables) -> Iterator[Damage]:
    """Yield blocks under ids without a row: they take space, and no reader finds them."""
    known = {row.id for row in tables.all_rows()}
    known |= {each.id for each in AsideArea(tables).rows()}
    for partition_id in tables.ids_with_blocks():
        if partition_id not in known:
            why = f"blocks have id {partition_id}, which belongs to no partition"
            yield Damage(UNKNOWN, "", "", 0, why)


def _set_aside(open_tables: OpenTables, row: PartitionRow) -> Iterator[Checked]:
    offset = row.earliest
    while offset < row.end:
        try:
            with open_tables() as tables:
                batch = AsideArea(tables).read(row.id, offset)
        except StoreError as error:
            yield _found(ASIDE, row.tp, offset, error.why)
            return
        if batch is None:
            return  # discarded meanwhile
        yield Checked(0, batch.count, 1, batch.values.size_bytes)
        offset = batch.end
