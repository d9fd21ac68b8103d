"""The missing records of one partition for one reader."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import HistoryChangedError
from dafka_core.model.epochs import Epoch
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.protocol import partition_fetcher, timing
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_SEQUENCE
from dafka_core.protocol.partition_fetcher import (
    FETCH_BLOCK_BYTES,
    FETCH_BLOCK_COUNT,
    FETCH_FIRST_COUNT,
    MAX_REORDER_BYTES,
    MAX_REORDER_RECORDS,
    Delivered,
    FollowedPartition,
    PartitionFetcher,
    ReorderBudget,
)
from tests.unit.protocol.model import TOPIC, TP, batch_of, offsets_of


def fetcher_at(offset: int = 0, budget: ReorderBudget | None = None) -> PartitionFetcher:
    return PartitionFetcher(TP, offset, ReorderBudget() if budget is None else budget)


@pytest.fixture
def fetcher() -> PartitionFetcher:
    return fetcher_at()


def asked(fetcher: PartitionFetcher, now: float) -> tuple[int, int] | None:
    return fetcher.claim(now, fetcher.state(now))


PIECES = st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1]))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 30), st.lists(PIECES, max_size=40), st.integers(0, 30))
def test_records_in_any_order_are_delivered_once_and_in_order(
    start: int, pieces: list[tuple[int, int]], room: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_fetcher, "MAX_REORDER_RECORDS", room)
        budget = ReorderBudget()
        fetcher = fetcher_at(start, budget)
        delivered: list[RecordBatch] = []
        for piece in pieces:
            delivered.extend(fetcher.take(0.0, batch_of(*piece)))
            assert offsets_of(delivered) == list(range(start, fetcher.next_offset))
            assert 0 <= budget.records <= room
            assert budget.size_bytes == 8 * budget.records
        assert fetcher.head == max([start, *(end for _, end in pieces)])
        # The gap is filled: whatever was kept behind it is given out, and its room given back.
        delivered.extend(fetcher.take(0.0, batch_of(fetcher.next_offset, 100)))
        assert offsets_of(delivered) == list(range(start, 100))
        assert budget.records == budget.size_bytes == 0


def test_requests_only_what_is_known_to_be_missing() -> None:
    fetcher = fetcher_at(5)
    assert asked(fetcher, 0.0) is None
    assert fetcher.deadline() == inf
    fetcher.raise_head(9)
    assert asked(fetcher, 0.0) == (5, 9)
    assert asked(fetcher, 0.0) is None
    assert fetcher.deadline() == timing.FETCH_RETRY_S
    fetcher.take(0.1, batch_of(5, 9))
    assert asked(fetcher, 99.0) is None
    assert fetcher.deadline() == inf


def test_retries_back_off_until_records_arrive(fetcher: PartitionFetcher) -> None:
    fetcher.raise_head(10)
    times = [tenth / 10 for tenth in range(1_000) if asked(fetcher, tenth / 10)]
    gaps = [round(later - earlier, 1) for earlier, later in pairwise(times)]
    assert gaps[:4] == [1.0, 2.0, 4.0, 8.0]
    assert set(gaps[4:]) == {timing.MAX_FETCH_RETRY_S}
    fetcher.take(100.0, batch_of(0, 5))
    assert asked(fetcher, 100.0 + timing.FETCH_RETRY_S - 0.1) is None
    assert asked(fetcher, 100.0 + timing.FETCH_RETRY_S) == (5, 10)


def test_blocks_grow_and_overlap(fetcher: PartitionFetcher) -> None:
    fetcher.raise_head(1_000_000)
    counts = []
    under_way: list[tuple[int, int]] = []
    while fetcher.next_offset < 1_000_000:
        block = asked(fetcher, 0.0)  # no time passes: nothing waits for a retry
        if block:
            under_way.append(block)
            counts.append(block[1] - block[0])
            assert block[1] - fetcher.next_offset <= MAX_FETCH_COUNT
        start, end = under_way[0]
        middle = (start + end) // 2
        if fetcher.next_offset < middle:
            fetcher.take(0.0, batch_of(start, middle))
        else:
            fetcher.take(0.0, batch_of(middle, end))
            under_way.pop(0)
            # While more is missing, the next block is in flight when one has arrived.
            assert under_way or fetcher.next_offset == 1_000_000 or fetcher.next_offset <= 60_000
    assert counts[0] <= 2 * FETCH_FIRST_COUNT
    assert max(counts) == FETCH_BLOCK_COUNT


def test_blocks_of_large_records_are_small(fetcher: PartitionFetcher) -> None:
    fetcher.raise_head(1_000)
    value = bytes(FETCH_BLOCK_BYTES // 4)
    fetcher.take(0.0, RecordBatch(TP, 0, Values.of([value])))
    start, end = asked(fetcher, 0.0) or (0, 0)
    assert (start, end - start) == (1, 6)  # three of them fit; the first block is doubled
    fetcher.take(0.0, RecordBatch(TP, 1, Values.of([bytes(2 * FETCH_BLOCK_BYTES)])))
    assert asked(fetcher, 0.0) is None
    assert asked(fetcher, timing.FETCH_RETRY_S) == (2, 3)


def test_records_refused_for_lack_of_room_are_requested_at_once(fetcher: PartitionFetcher) -> None:
    fetcher.raise_head(100)
    assert asked(fetcher, 0.0) == (0, 100)
    fetcher.take(0.1, batch_of(0, 30))
    fetcher.give_back(batch_of(30, 60))
    fetcher.give_back(batch_of(60, 120))
    assert asked(fetcher, 0.1) == (30, 120)
    # Earlier records, unless lost as well, are awaited.
    fetcher.give_back(batch_of(80, 100))
    assert asked(fetcher, 0.1) == (80, 120)
    assert asked(fetcher, 0.1) is None


def test_losing_delivered_records_changes_nothing(fetcher: PartitionFetcher) -> None:
    fetcher.take(0.0, batch_of(0, 30))
    fetcher.give_back(batch_of(10, 20))
    assert (fetcher.next_offset, fetcher.head) == (30, 30)
    assert asked(fetcher, 9.0) is None


def test_a_peer_that_receives_us_only_now_is_asked_at_once(fetcher: PartitionFetcher) -> None:
    fetcher.raise_head(100)
    assert asked(fetcher, 0.0) == (0, 100)
    fetcher.retry_unanswered()
    assert asked(fetcher, 0.0) == (0, 100)
    fetcher.take(0.1, batch_of(0, 50))
    # An answer is coming: others need not give it once more.
    fetcher.retry_unanswered()
    assert asked(fetcher, 0.1) is None


def test_repeated_connections_do_not_change_the_block(fetcher: PartitionFetcher) -> None:
    fetcher.raise_head(1 << 40)
    blocks = set()
    for _ in range(100):
        blocks.add(asked(fetcher, 0.0))
        fetcher.retry_unanswered()
    assert blocks == {(0, 2 * FETCH_FIRST_COUNT)}


def test_reaches_the_greatest_offset() -> None:
    fetcher = fetcher_at(MAX_SEQUENCE - 1)
    fetcher.raise_head(MAX_SEQUENCE + 1)
    assert asked(fetcher, 0.0) == (MAX_SEQUENCE - 1, MAX_SEQUENCE + 1)
    fetcher.take(0.0, batch_of(MAX_SEQUENCE - 1, MAX_SEQUENCE + 1))
    assert fetcher.next_offset == MAX_SEQUENCE + 1
    assert asked(fetcher, 99.0) is None


def test_kept_records_of_all_partitions_are_bounded() -> None:
    budget = ReorderBudget()
    fetchers = [PartitionFetcher(TopicPartition(TOPIC, f"P{i}"), 0, budget) for i in range(4)]
    for fetcher in fetchers:
        for start in range(1, MAX_REORDER_RECORDS, 40_000):
            fetcher.take(0.0, batch_of(start, start + 30_000, partition=fetcher.tp.partition))
    assert MAX_REORDER_RECORDS - 30_000 < budget.records <= MAX_REORDER_RECORDS
    for fetcher in fetchers:
        # Without room nothing is forgotten: the record is known to exist.
        assert fetcher.head > MAX_REORDER_RECORDS - 40_000
        fetcher.close()
    assert budget.records == budget.size_bytes == 0


def test_kept_records_are_bounded_in_bytes() -> None:
    budget = ReorderBudget()
    fetcher = fetcher_at(0, budget)
    for offset in range(1, 40, 2):
        fetcher.take(0.0, RecordBatch(TP, offset, Values.of([bytes(8 << 20)])))
    assert budget.size_bytes == MAX_REORDER_BYTES
    assert budget.records == 8
    fetcher.close()
    assert budget.size_bytes == 0


def test_a_kept_record_takes_room_once() -> None:
    budget = ReorderBudget()
    fetcher = fetcher_at(0, budget)
    for _ in range(10):
        fetcher.take(0.0, batch_of(5, 9))
        fetcher.take(0.0, batch_of(6, 9))
    assert budget.records == 4


def test_the_worst_order_of_arrival_is_fast(fetcher: PartitionFetcher) -> None:
    values = Values.of([b""])
    started = time.process_time()
    for offset in range(30_000, 0, -1):
        fetcher.take(0.0, RecordBatch(TP, offset, values))
    taken = fetcher.take(0.0, RecordBatch(TP, 0, values))
    assert [batch.offset for batch in taken] == list(range(30_001))
    # A search of everything kept, for each record, would take minutes.
    assert time.process_time() - started < 10


def test_a_reader_may_skip_records() -> None:
    budget = ReorderBudget()
    fetcher = PartitionFetcher(TP, 0, budget)
    for start, end in ((20, 30), (25, 40), (50, 60)):
        assert fetcher.take(0.0, batch_of(start, end)) == []
    assert fetcher.advance(5) == []
    assert (fetcher.next_offset, fetcher.head) == (5, 60)
    assert offsets_of(fetcher.advance(22)) == list(range(22, 40))
    assert fetcher.advance(30) == []
    assert offsets_of(fetcher.advance(50)) == list(range(50, 60))
    assert (fetcher.next_offset, budget.records, budget.size_bytes) == (60, 0, 0)
    assert fetcher.advance(70) == []
    assert (fetcher.next_offset, fetcher.head, fetcher.deadline()) == (70, 70, inf)


# -- histories: a reader follows one, and restarts where another has replaced it ------------------

A = Epoch(1, 0xA, 1, 0, 0)
B = Epoch(2, 0xB, 1, 5, A.digest)
OTHER = Epoch(3, 0xF, 1, 3, A.digest)
"""It continues A without A's records from 3 on, and does not know B."""


def of(epoch: Epoch | None, start: int, end: int) -> RecordBatch:
    return replace(batch_of(start, end), epoch=epoch)


def followed(*batches: RecordBatch) -> FollowedPartition:
    partition = FollowedPartition(TP, batches[0].offset, ReorderBudget())
    for batch in batches:
        assert partition.follow(0.0, batch) == [batch]
    return partition


def change(delivered: Sequence[Delivered]) -> tuple[int, int]:
    """Return the restart and the former position by the error, which is last."""
    error = delivered[-1]
    assert isinstance(error, HistoryChangedError)
    return error.wanted, error.position


def test_a_life_may_follow_another() -> None:
    partition = followed(of(A, 0, 3), of(A, 3, 5), of(B, 5, 6), of(None, 6, 7), of(B, 7, 9))
    assert partition.epochs == (A, B)


def test_a_reader_may_begin_in_any_life() -> None:
    assert followed(of(B, 7, 9)).epochs == (B,)


def test_records_of_a_life_that_was_taken_over_are_stale() -> None:
    partition = followed(of(A, 0, 3), of(OTHER, 3, 4))
    assert partition.is_stale(of(B, 5, 6))
    assert not partition.is_stale(of(A, 2, 3))
    assert not partition.is_stale(of(None, 5, 6))


@pytest.mark.parametrize("start", [3, 5, 8])
def test_records_of_a_known_older_life_are_stale_after_a_newer_one(start: int) -> None:
    """As a store sends them that has been away, and yields them only later."""
    partition = followed(of(A, 0, 5), of(B, 5, 8))
    assert partition.is_stale(of(A, start, 9))
    assert not partition.is_stale(of(A, 3, 5))
    assert not partition.is_stale(of(B, 5, 9))


def test_records_of_an_older_life_that_wait_behind_a_newer_one_are_dropped() -> None:
    partition = followed(of(A, 0, 5))
    assert partition.follow(0.0, of(A, 7, 9)) == []
    assert partition.follow(0.0, of(B, 5, 7)) == [of(B, 5, 7)]
    assert (partition.epochs, partition.kept) == ((A, B), [])
    assert (partition.next_offset, partition.head) == (7, 9)
    assert partition.follow(0.0, of(B, 7, 8)) == [of(B, 7, 8)]


def test_a_newer_life_replaces_records_from_its_start() -> None:
    partition = followed(of(A, 0, 5))
    assert change(partition.follow(0.0, of(OTHER, 6, 9))) == (3, 5)
    # The records from 3 on are missing now, up to the end that is known of the newer life.
    assert (partition.next_offset, partition.head) == (3, 9)
    assert partition.follow(0.0, of(OTHER, 3, 9)) == [of(OTHER, 3, 9)]
    assert partition.epochs == (A, OTHER)


def test_records_of_another_history_are_not_delivered() -> None:
    partition = followed(of(A, 0, 2))
    # It waits for the records before it, which turn out to be of a history that it does not know.
    assert partition.follow(0.0, of(OTHER, 7, 8)) == []
    assert partition.follow(0.0, of(A, 2, 5)) == [of(A, 2, 5)]
    delivered = partition.follow(0.0, of(B, 5, 7))
    assert change(delivered) == (0, 7)  # the divergence is unknown
    assert [*delivered[:-1]] == [of(B, 5, 7)]
    assert (partition.epochs, partition.head) == ((), 8)


@pytest.mark.parametrize(("start", "restarts"), [(3, False), (2, False), (1, True)])
def test_skipped_records_may_include_whole_lives(start: int, *, restarts: bool) -> None:
    partition = followed(of(A, 0, 2))
    assert partition.skip(3) == partition.skip(4) == []
    unknown = Epoch(3, 0xF, 1, start, 0x77)
    delivered = partition.follow(0.0, of(unknown, 4, 6))
    if restarts:
        assert change(delivered) == (0, 4)
    else:
        assert delivered == [of(unknown, 4, 6)]
        assert partition.epochs == (A, unknown)


def test_a_life_that_began_with_skipped_records_has_not_diverged() -> None:
    """Otherwise a reader would return to records that no node has, for ever."""
    partition = followed(of(A, 0, 5))
    partition.skip(8)
    assert partition.follow(0.0, of(B, 8, 9)) == [of(B, 8, 9)]
    partition = followed(of(A, 0, 5))
    partition.skip(8)
    assert change(partition.follow(0.0, of(OTHER, 8, 9))) == (OTHER.start, 8)


def test_a_life_that_began_before_the_next_record_has_diverged() -> None:
    """Records that had to wait may be of the older life, and those behind them of the newer one."""
    partition = followed(of(A, 0, 2))
    assert partition.follow(0.0, of(OTHER, 4, 6)) == []
    delivered = partition.follow(0.0, of(A, 2, 4))
    assert change(delivered) == (OTHER.start, 4)
    assert [*delivered[:-1]] == [of(A, 2, 4)]
    assert (partition.next_offset, partition.head) == (3, 6)


def test_records_without_an_epoch_may_be_the_first_of_the_next_life() -> None:
    assert followed(of(A, 0, 5), of(None, 5, 7), of(B, 7, 9)).epochs == (A, B)


def test_the_first_record_after_skipped_ones_decides_their_life() -> None:
    partition = followed(of(A, 0, 2))
    partition.skip(4)
    assert partition.follow(0.0, of(A, 4, 6)) == [of(A, 4, 6)]
    assert change(partition.follow(0.0, of(OTHER, 6, 8))) == (OTHER.start, 6)
