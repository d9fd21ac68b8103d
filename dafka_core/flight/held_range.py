"""Whether a store has what is asked for: all of the range, of the history that is meant."""

from __future__ import annotations

from dafka_core.epochs import EpochId, History, known_until
from dafka_core.errors import CHANGED, DataLossError, HistoryChangedError
from dafka_core.flight.flight_errors import BEHIND, UnavailableError
from dafka_core.flight.many_ranges import AskedRange
from dafka_core.flight.requests import RangeRequest
from dafka_core.records import PartitionInfo, TopicPartition


def check_held(held: PartitionInfo | None, tp: TopicPartition, start: int, end: int) -> None:
    """Raises DataLossError unless the records from ``start`` up to ``end`` are held.

    Its ``available`` is the first offset held where the range begins before it, else None; its
    ``wanted`` is the first offset of the range that is not held.
    """
    if held is None:
        held = PartitionInfo(*tp, 0, 0)
    if start < held.earliest and start < end:
        why = "the store has no records before it"
        raise DataLossError(*tp, start, held.earliest, why)
    if end > held.end:
        why = f"the store has the records from {held.earliest} up to {held.end} (exclusive)"
        raise DataLossError(*tp, max(start, held.end), None, why)


def check_history(history: History, request: RangeRequest | AskedRange) -> None:
    """Sees that a log's records are of the history that the caller has heard of.

    Raises:
        HistoryChangedError: a newer producer has taken over from the one heard of.
        UnavailableError: the log has no records of that one yet.
    """
    for life, end in ((request.after, request.start), (request.life, request.end)):
        if life is None:
            continue
        known = known_until(history, EpochId(*life))
        if known is None:
            why = f"the store has no records of life {life[0]} of the partition's producer yet"
            raise UnavailableError(BEHIND, f"{why}; ask another store, or later")
        if known < end:
            raise HistoryChangedError(*request.tp, known, None, CHANGED, end)
