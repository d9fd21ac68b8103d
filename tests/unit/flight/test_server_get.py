"""The ranges that a store has, and their histories."""

from __future__ import annotations

import pytest

from dafka_core.errors import DataLossError, HistoryChangedError
from dafka_core.flight.flight_errors import UnavailableError
from dafka_core.flight.requests import RecordRange
from dafka_core.flight.server_get import check_held, check_history
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import PartitionInfo, TopicPartition

TP = TopicPartition("t", "P")
HELD = PartitionInfo(*TP, 10, 20)
A = Epoch.first(EpochId(5, 1, 1))
B = Epoch(9, 2, 1, 60, A.digest)


@pytest.mark.parametrize(
    ("start", "end", "wanted", "available"),
    [(9, 20, 9, 10), (10, 21, 20, None), (5, 25, 5, 10), (30, 31, 30, None)],
)
def test_what_is_not_held(start: int, end: int, wanted: int, available: int | None) -> None:
    with pytest.raises(DataLossError) as caught:
        check_held(HELD, TP, start, end)
    assert (caught.value.wanted, caught.value.available) == (wanted, available)


def test_what_is_held() -> None:
    check_held(HELD, TP, 10, 20)
    check_held(None, TP, 0, 0)


def asked(start: int, end: int, life: Epoch | None, after: Epoch | None = None) -> RecordRange:
    return RecordRange(*TP, start, end, life=life and life.life, after=after and after.life)


@pytest.mark.parametrize(
    "request_",
    [
        asked(0, 99, None),
        asked(0, 60, A),
        asked(0, 99, B),
        asked(60, 99, B, A),
        asked(50, 99, B, A),
    ],
)
def test_the_history_that_is_meant(request_: RecordRange) -> None:
    check_history((A, B), request_)


@pytest.mark.parametrize("request_", [asked(0, 70, A), asked(70, 99, B, A), asked(70, 99, None, A)])
def test_another_history(request_: RecordRange) -> None:
    with pytest.raises(HistoryChangedError) as caught:
        check_history((A, B), request_)
    assert (caught.value.wanted, caught.value.position) == (60, 70)


def test_a_store_that_is_behind() -> None:
    with pytest.raises(UnavailableError, match="no records of life 9"):
        check_history((A,), asked(0, 10, B))
