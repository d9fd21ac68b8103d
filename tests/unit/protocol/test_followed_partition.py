"""A consumer or reader follows one history, and restarts where another has replaced it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dafka_core.errors import HistoryChangedError
from dafka_core.model.epochs import Epoch
from dafka_core.model.records import RecordBatch
from dafka_core.protocol.partition_fetcher import Delivered, FollowedPartition, ReorderBudget
from tests.unit.protocol.model import TP, batch_of

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
