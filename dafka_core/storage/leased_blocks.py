"""Where in a log's file the blocks of ranges lie, for those who read them during a lease."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dafka_core.epochs import History
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage.file_positions import FilePositions
from dafka_core.storage.leases import BlockPlace
from dafka_core.storage.tables import Tables

Range = tuple[TopicPartition, int, int]
"""Records of a partition from an offset up to another one (exclusive)."""


class PlacedRange(NamedTuple):
    """The blocks of a range; ``held`` is what there is of its partition, of which history."""

    held: PartitionInfo | None
    history: History
    blocks: list[BlockPlace]


def places_of(
    tables: Tables,
    positions: FilePositions,
    ranges: Iterable[Range],
    max_blocks: int,
    max_bytes: int,
) -> list[PlacedRange]:
    """Where the blocks of these ranges lie, in order, up to the limits, but one at least.

    Where they are reached the last range may lack some, and those after it are left out.
    """
    found: list[PlacedRange] = []
    for tp, start, end in ranges:
        if max_blocks <= 0 or max_bytes <= 0:
            break
        row = tables.visible_row(tp)
        if row is None:
            found.append(PlacedRange(None, (), []))
            continue
        places = [
            BlockPlace(each.first, positions.of(each.packed), len(each.packed))
            for each in tables.blocks_between(tp, row, start, end, max_blocks, max_bytes)
        ]
        max_blocks -= len(places)
        max_bytes -= sum(place.size_bytes for place in places)
        found.append(PlacedRange(row.info(tp), tables.lives.history(tp, row), places))
    return found
