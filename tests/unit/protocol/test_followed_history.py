"""A reader follows one history, and reports where another has replaced it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dafka_core.model.epochs import Epoch
from dafka_core.model.records import RecordBatch
from dafka_core.protocol.histories import FollowedHistory
from tests.unit.protocol.model import batch_of

A = Epoch(1, 0xA, 1, 0, 0)
B = Epoch(2, 0xB, 1, 5, A.digest)
OTHER = Epoch(3, 0xF, 1, 3, A.digest)
"""It continues A without A's records from 3 on, and does not know B."""


def of(epoch: Epoch | None, start: int, end: int) -> RecordBatch:
    return replace(batch_of(start, end), epoch=epoch)


def followed(*taken: RecordBatch) -> FollowedHistory:
    history = FollowedHistory()
    assert history.take(taken) == (taken, None)
    return history


def test_a_life_may_follow_another() -> None:
    history = followed(of(A, 0, 3), of(A, 3, 5), of(B, 5, 6), of(None, 6, 7), of(B, 7, 9))
    assert history.epochs == (A, B)


def test_a_reader_may_begin_in_any_life() -> None:
    assert followed(of(B, 7, 9)).epochs == (B,)


def test_records_of_a_life_that_was_taken_over_are_stale() -> None:
    history = followed(of(A, 0, 3), of(OTHER, 3, 4))
    assert history.is_stale(of(B, 5, 6))
    assert not history.is_stale(of(A, 2, 3))
    assert not history.is_stale(of(None, 5, 6))


@pytest.mark.parametrize(("position", "at"), [(5, 3), (3, None)])
def test_a_newer_life_replaces_records_from_its_start(position: int, at: int | None) -> None:
    assert followed(of(A, 0, position)).parted_by(OTHER, position) == at


def test_records_of_another_history_are_not_delivered() -> None:
    history = followed(of(A, 0, 5), of(B, 5, 6))
    batch, stranger = of(B, 6, 7), of(OTHER, 7, 8)
    taken, at = history.take([batch, stranger])
    assert list(taken) == [batch]
    assert at == 0  # the divergence is unknown
    history.rewind(3)
    assert history.epochs == (A,)
    assert history.take([of(OTHER, 3, 8)])[1] is None


@pytest.mark.parametrize(("epoch", "at"), [(OTHER, None), (Epoch(3, 0xF, 1, 1, A.digest), 0)])
def test_skipped_records_may_include_whole_lives(epoch: Epoch, at: int | None) -> None:
    history = followed(of(A, 0, 2))
    history.skip_from(2)
    history.skip_from(3)
    unknown = epoch._replace(parent=0x77)
    assert history.take([of(unknown, 4, 6)])[1] == at
    assert (unknown in history.epochs) == (at is None)


def test_a_life_that_began_with_skipped_records_has_not_diverged() -> None:
    """Otherwise a reader would return to records that no node has, for ever."""
    history = followed(of(A, 0, 5))
    history.skip_from(5)
    assert history.parted_by(B, 8) is None
    assert history.parted_by(OTHER, 8) == OTHER.start
    assert history.take([of(B, 8, 9)])[1] is None


def test_a_life_that_began_before_the_next_record_has_diverged() -> None:
    """Records that had to wait may be of the older life, and those behind them of the newer one."""
    batch, later = of(A, 2, 4), of(OTHER, 4, 6)
    history = followed(of(A, 0, 2))
    taken, at = history.take([batch, later])
    assert (list(taken), at) == ([batch], OTHER.start)


def test_records_without_an_epoch_may_be_the_first_of_the_next_life() -> None:
    assert followed(of(A, 0, 5), of(None, 5, 7), of(B, 7, 9)).epochs == (A, B)


def test_the_first_record_after_skipped_ones_decides_their_life() -> None:
    history = followed(of(A, 0, 2))
    history.skip_from(2)
    assert history.take([of(A, 4, 6)])[1] is None
    assert history.take([of(OTHER, 6, 8)])[1] == OTHER.start
