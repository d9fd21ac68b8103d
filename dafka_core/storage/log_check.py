"""Reads all of a log and says what of it is not as it was written.

Each block is copied and checked, and every record that a partition's row tells of must be in one.
A look at the log lasts for some blocks only, so that a store may run meanwhile: LMDB keeps the
pages that appends and merging free for as long as a look lasts.  Where LMDB finds a damaged page of
a tree it reads nothing more in that look, so the check goes on behind the page in the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final

import lmdb

from dafka_core.errors import StoreError
from dafka_core.records import TopicPartition
from dafka_core.storage.block import Block, peek_count
from dafka_core.storage.check_results import (
    ASIDE,
    BLOCK,
    EPOCHS,
    HOLE,
    NOTES,
    ROW,
    STAGED,
    UNKNOWN,
    Checked,
    Damage,
    Look,
)
from dafka_core.storage.link_check import check_links
from dafka_core.storage.rows import PartitionRow, tp_of_key
from dafka_core.storage.set_aside import AsideArea, AsideRecords
from dafka_core.storage.tables import Tables

_NOWHERE: Final = TopicPartition("", "")

LOOK_BLOCKS: Final = 64
LOOK_BYTES: Final = 64 << 20
"""Blocks that one look at the log checks: some hundredths of a second."""


def check(look: Look) -> Iterator[Checked]:
    """Checks a log, a look at a time; it may be written meanwhile."""
    for tp in _rows(look)[0]:
        yield from check_partition(look, tp)
    yield from check_rest(look)  # at the end: LMDB may abort where it walks a damaged tree


def check_rest(look: Look) -> Iterator[Checked]:
    """Checks all that is in no partition's records: rows, notes, what is set aside."""
    aside, log_format = list[AsideRecords](), 0
    _, found = _rows(look)
    with _naming(look, ASIDE, _NOWHERE, found) as tables:
        aside = AsideArea(tables).listed()
    if not found:  # else blocks of a row that cannot be read would count as nobody's
        with _naming(look, BLOCK, _NOWHERE, found) as tables:
            found.extend(_unknown(tables))
    with _naming(look, NOTES, _NOWHERE, found) as tables:
        log_format = tables.cold.log_format
        tables.notes.named("")
    yield Checked(found=tuple(found), log_format=log_format)
    for each in aside:
        yield from _set_aside(look, each)


def check_blocks(tables: Tables) -> Iterator[Checked]:
    """Checks only that each block is one, where the others are elsewhere."""
    for _, packed in tables.entries(2):
        try:
            yield Checked(0, Block.copied(packed).count, 1, len(packed))
        except ValueError as error:
            yield Checked(found=(Damage(BLOCK, "", "", 0, str(error)),))


@contextmanager
def _naming(look: Look, kind: str, tp: TopicPartition, found: list[Damage]) -> Iterator[Tables]:
    try:
        with look() as tables:
            yield tables
    except StoreError as error:
        found.append(Damage(kind, *tp, 0, error.why))


def _rows(look: Look) -> tuple[list[TopicPartition], list[Damage]]:
    good, damaged = list[TopicPartition](), list[Damage]()
    with _naming(look, ROW, _NOWHERE, damaged) as tables:
        for key, value in tables.entries(1):
            tp = tp_of_key(key)
            try:
                PartitionRow.parse(key, value)
                good.append(tp)
            except ValueError as error:
                damaged.append(Damage(ROW, *tp, 0, str(error)))
        tables.check_count(len(good) + len(damaged))
    return good, damaged


def check_partition(look: Look, tp: TopicPartition) -> Iterator[Checked]:
    """Checks the records of a partition, from its earliest one on; what is staged; its links."""
    offset = 0
    while True:
        try:
            with look() as tables:
                row = tables.row(tp)
                if row is None:
                    return
                offset = max(offset, row.earliest)
                if offset >= row.end:
                    break
                following, checked = _stretch(tables, tp, row, offset)
        except StoreError as error:
            following, checked = None, Checked(found=(Damage(BLOCK, *tp, offset, error.why),))
        yield checked
        if following is None:
            following = _behind(look, tp, checked.found[0].offset)
        if following is None:
            return
        offset = following
    found: list[Damage] = []
    with _naming(look, EPOCHS, tp, found) as tables:
        found.extend(_epochs(tables, tp, row))
    with _naming(look, STAGED, tp, found) as tables:
        found.extend(_staged(tables, tp, row))
    yield Checked(partitions=1, found=tuple(found))
    yield from check_links(look, tp)


def _behind(look: Look, tp: TopicPartition, offset: int) -> int | None:
    """Return the first block behind a damaged page that the end leads to; None without a row."""
    start = None
    with suppress(StoreError, ValueError), look() as tables:
        row = tables.row(tp)
        if row is not None:
            start = row.end
            grouped = [each.first for each in tables.area.of_partition(row.id)]
            start = min([each for each in grouped if each > offset], default=start)
            while (found := tables.last_block(row.id, start - 1)) and found.first > offset:
                start = found.first
    return start


def _stretch(
    tables: Tables, tp: TopicPartition, row: PartitionRow, offset: int
) -> tuple[int | None, Checked]:
    """Checks some blocks from an offset on; where the next look begins, None if LMDB failed."""
    start, blocks, size_bytes = offset, 0, 0
    try:
        between = tables.blocks_between(tp, row, offset, row.end, LOOK_BLOCKS, LOOK_BYTES)
        for found in between:
            block = tables.read_block(tp, found, Block.copied)
            offset, blocks = found.first + block.count, blocks + 1
            size_bytes += len(found.packed)
    except StoreError as error:
        # The block there may be good, and the one behind it missing.
        after = _end_of_block(tables, row, offset)
        if after > offset:
            offset, blocks = after, blocks + 1
            damage = Damage(HOLE, *tp, offset, f"there is no block with offset {offset}")
        else:
            is_hole = _is_in_no_block(tables, row, offset)
            damage = Damage(HOLE if is_hole else BLOCK, *tp, offset, error.why)
        done = Checked(0, offset - start, blocks, size_bytes, (damage,))
        return _next_start(tables, row, offset), done
    except (lmdb.Error, struct.error) as error:
        damage = Damage(BLOCK, *tp, offset, f"a page of the tree is damaged: {error}")
        return None, Checked(0, offset - start, blocks, size_bytes, (damage,))
    return offset, Checked(0, offset - start, blocks, size_bytes)


def _end_of_block(tables: Tables, row: PartitionRow, offset: int) -> int:
    """Where the block that holds an offset ends; the offset where none that is good does."""
    found = tables.last_block(row.id, offset)
    with suppress(ValueError):
        if found is not None:
            end = found.first + Block.copied(found.packed).count
            return end if end <= row.end else offset
    return offset


def _is_in_no_block(tables: Tables, row: PartitionRow, offset: int) -> bool:
    found = tables.last_block(row.id, offset)
    try:
        if tables.area.find(row.id, offset):
            return False
        return found is None or found.first + peek_count(found.packed) <= offset
    except ValueError:
        return False


def _next_start(tables: Tables, row: PartitionRow, offset: int) -> int:
    """Where the first block behind an offset begins, or else the partition's end."""
    starts = [next(tables.firsts(row.id, offset + 1), row.end)]
    with suppress(ValueError):  # of a damaged group
        starts += [each.first for each in tables.area.of_partition(row.id) if each.first > offset]
    return min(*starts, row.end)


def _epochs(tables: Tables, tp: TopicPartition, row: PartitionRow) -> Iterator[Damage]:
    try:
        history = tables.lives.history(tp, row)
    except StoreError as error:
        yield Damage(EPOCHS, *tp, 0, error.why)
        return
    for before, after in pairwise(history):
        if before.start > after.start or before.life >= after.life:
            why = f"the producer's life from offset {after.start} on does not follow the one before"
            yield Damage(EPOCHS, *tp, after.start, why)
    if history and history[-1].start > row.end:
        why = f"the producer's newest life begins at {history[-1].start}, behind the end {row.end}"
        yield Damage(EPOCHS, *tp, history[-1].start, why)


def _staged(tables: Tables, tp: TopicPartition, row: PartitionRow) -> Iterator[Damage]:
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
            yield Damage(STAGED, *tp, offset, str(error))
            return
    if offset != row.staged.end:
        why = f"staged records end at {offset}, not at {row.staged.end}"
        yield Damage(STAGED, *tp, offset, why)


def _unknown(tables: Tables) -> Iterator[Damage]:
    """Blocks under ids that no row has: they take space, and nobody reads them."""
    known = {row.id for _, row in tables.all_rows()}
    known |= {each.id for each in AsideArea(tables).listed()}
    for partition_id in tables.ids_with_blocks():
        if partition_id not in known:
            why = f"there are blocks under id {partition_id}, which is no partition's"
            yield Damage(UNKNOWN, "", "", 0, why)


def _set_aside(look: Look, each: AsideRecords) -> Iterator[Checked]:
    offset = each.start
    while offset < each.end:
        why = f"what is set aside as {each.id} has no record of offset {offset}"
        batch = None
        try:
            with look() as tables:
                if each not in AsideArea(tables).listed():
                    return  # discarded meanwhile
                batch = AsideArea(tables).read(each.id, offset)
        except StoreError as error:
            why = error.why
        if batch is None or not batch.offset <= offset < batch.end:
            yield Checked(found=(Damage(ASIDE, each.topic, each.partition, offset, why),))
            return
        yield Checked(0, batch.end - offset, 1, batch.values.size_bytes)
        offset = batch.end
