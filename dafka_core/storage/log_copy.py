"""What a backup takes of a log: all entries of its tables at one moment, or what is new in them.

A backup that goes on from an earlier one takes the tables of rows and of notes as they are, since
they are small, and of each partition the blocks with records that the earlier one does not have in
blocks of its own.  Blocks change only by records that are added at their end, by merging, which
leaves the records what they were, and where records are set aside; then the histories differ, and
all blocks of the partition are taken.

First comes an entry of no table that says of what the others are, and last one that says how many
there were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import xxhash

from dafka_core.epochs import Epoch, History, before
from dafka_core.storage.block import peek_count
from dafka_core.storage.rows import BLOCK_KEY, LAST_OFFSET
from dafka_core.storage.tables import FoundBlock, Tables

META, PARTITIONS, BLOCKS, FACTS = range(4)
"""The tables' numbers, and that of the entries which are in none."""

FIRST_KEY: Final = b"first"
LAST_KEY: Final = b"last"


class Entry(NamedTuple):
    """An entry of a table; ``value`` is valid until the next one is asked for."""

    table: int
    key: bytes
    value: memoryview


class Known(NamedTuple):
    """What an earlier backup has of a partition, by its id: blocks up to ``end``, all there are.

    ``history`` stands for whose records those are.
    """

    id: int
    end: int
    history: str


def entries(
    tables: Tables, known: Mapping[int, Known], facts: Mapping[str, Any]
) -> Iterator[Entry]:
    """What a backup takes; ``facts`` are added to the first entry.

    Raises:
        StoreError: a row is damaged.
    """
    count, starts = 0, {}
    for tp, row in tables.all_rows():
        if row.id in known:
            end = known[row.id].end
            same = history_text(before(tables.lives.history(tp, row), end)) == known[row.id].history
            starts[row.id] = end if same and end <= row.end else 0
    whole = sorted(each for each, start in starts.items() if start < known[each].end)
    yield _fact(FIRST_KEY, {**facts, "format": tables.cold.log_format, "whole": whole})
    for table in (META, PARTITIONS):
        for key, value in tables.entries(table):
            yield Entry(table, key, value)
            count += 1
    for partition_id in tables.ids_with_blocks():
        for found in _blocks_from(tables, partition_id, starts.get(partition_id, 0)):
            yield Entry(BLOCKS, found.key, found.packed)
            count += 1
    yield _fact(LAST_KEY, {"entries": count})


def known_of(tables: Tables) -> list[Known]:
    """What a backup has of each partition, for the next one."""
    found = []
    for tp, row in tables.all_rows():
        grouped = [
            each.first for each in tables.area.of_partition(row.id) if each.end > row.earliest
        ]
        end = min([*grouped, row.end])
        found.append(Known(row.id, end, history_text(before(tables.lives.history(tp, row), end))))
    return found


def history_text(history: History) -> str:
    """What stands for a history in a request."""
    return xxhash.xxh3_64_hexdigest(b"".join(map(Epoch.packed, history)))


def fact(entry: Entry) -> dict[str, Any]:
    """What the first or the last entry says.

    Raises:
        ValueError: it is none of them.
    """
    found = json.loads(bytes(entry.value))
    if entry.table != FACTS or not isinstance(found, dict):
        raise ValueError("it does not begin, or end, as a store's entries do")
    return found


def _fact(key: bytes, facts: Mapping[str, Any]) -> Entry:
    return Entry(FACTS, key, memoryview(json.dumps(facts).encode()))


def _blocks_from(tables: Tables, partition_id: int, start: int) -> Iterator[FoundBlock]:
    last = tables.last_block(partition_id, start) if start else None
    if last is not None and last.first < start:
        try:
            ends = last.first + peek_count(last.packed)
        except ValueError:  # it is damaged, which the copy is to be, too
            ends = LAST_OFFSET
        if ends > start:
            yield last
    for first in tables.firsts(partition_id, start):
        packed = tables.packed_block(partition_id, first)
        assert packed is not None
        yield FoundBlock(BLOCK_KEY.pack(partition_id, first), first, packed)
