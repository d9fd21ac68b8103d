"""Ranges of a log: complete, or an error that says what is held."""

from __future__ import annotations

from collections.abc import Iterator

from dafka_core.errors import DataLossError
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Snapshot


def check_held(held: PartitionInfo | None, tp: TopicPartition, start: int, end: int) -> None:
    """Raises DataLossError unless the records from ``start`` up to ``end`` are held.

    Its ``available`` is the first offset held where the range begins before it, else None; its
    ``wanted`` the first offset of the range that is not held.
    """
    if held is None:
        held = PartitionInfo(*tp, 0, 0)
    if start < held.earliest and start < end:
        why = "the store has no records before it"
        raise DataLossError(*tp, start, held.earliest, why)
    if end > held.end:
        why = f"the store has the records from {held.earliest} up to {held.end} (exclusive)"
        raise DataLossError(*tp, max(start, held.end), None, why)


def batches(
    snapshot: Snapshot, tp: TopicPartition, start: int, end: int, *, copy: bool = False
) -> Iterator[RecordBatch]:
    """The records from ``start`` up to ``end`` (exclusive), all of them; see ``Snapshot.read``.

    Raises:
        DataLossError: some are not held (``check_held``); before any batch.
        StoreError: a block is damaged.
    """
    check_held(snapshot.info(tp), tp, start, end)
    yield from snapshot.read(tp, start, end, copy=copy)
