"""The conditions of lost records: their names, their facts, and what is done about them."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

from dafka_core.errors import DafkaError, DataLossError, StoreUnreachableError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark import errors
from dafka_spark.errors import (
    HeadBehindError,
    HistoryReplacedError,
    IncompleteBatchError,
    PartitionVanishedError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.data_loss import DataLossPolicy, classify, denial

A = TopicPartition("t", "A")

LOSSES: list[SourceLossError] = [
    StoreLostDataError("t", "A", 40, end=40, lost_end=60),
    RetentionAheadError("t", "A", 10, 20, lost_end=20),
    PartitionVanishedError("t", "A", 10, store="S", lost_end=60),
    HeadBehindError("t", "A", 40, end=40, store="S", waited_s=3.0, lost_end=60),
    HistoryReplacedError("t", "A", 40, end=60),
]
INCOMPLETE = IncompleteBatchError("t", "A", 0, 9, expected=5, found=7, why="a gap")


def policy(fail: str) -> DataLossPolicy:
    return DataLossPolicy(SourceOptions.of({"subscribe": "t", "failondataloss": fail}))


@pytest.mark.parametrize("error", [*LOSSES, INCOMPLETE], ids=lambda error: error.condition)
def test_every_condition(error: DafkaError) -> None:
    text = str(error)
    assert re.match(r"\[DAFKA_[A-Z_]+\] topic 't', partition A: ", text)
    assert "Start " in text
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert vars(again) == vars(error)


def test_each_has_a_name_of_its_own_and_the_documentation_has_them_all() -> None:
    kinds: list[type[SourceLossError | IncompleteBatchError]] = [
        *SourceLossError.__subclasses__(),
        IncompleteBatchError,
    ]
    page = (Path(__file__).parents[3] / "docs" / "source.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(DAFKA_\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert dict(rows) == {kind.condition: kind.__name__ for kind in kinds}
    assert len({kind.condition for kind in kinds}) == len(kinds) == 6
    assert all(getattr(errors, name) in kinds for _, name in rows)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda error: error.condition)
def test_one_place_decides(loss: SourceLossError, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError) as caught:
        policy("true").fail_or_warn(loss)
    assert caught.value is loss
    assert "or set option failOnDataLoss to false" in str(loss)
    with caplog.at_level(logging.WARNING):
        policy("false").fail_or_warn(loss)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"[{loss.condition}] ")
    lost = f"offsets {loss.wanted} to {loss.lost_end} (exclusive) are left out"
    if isinstance(loss, HistoryReplacedError):
        lost = "the query goes on with the records that are there now"
    assert f"{lost}, as failOnDataLoss is false. {loss.advice}" in said


@pytest.mark.parametrize(
    ("held", "away", "kind"),
    [
        ((0, 60), "", None),
        ((10, 99), "S", None),
        ((0, 59), "", StoreLostDataError),
        ((0, 5), "", StoreLostDataError),
        ((0, 59), "S", HeadBehindError),
        ((11, 99), "S", RetentionAheadError),
        (None, "S", PartitionVanishedError),
    ],
)
def test_what_is_what(
    held: tuple[int, int] | None, away: str, kind: type[SourceLossError] | None
) -> None:
    info = None if held is None else PartitionInfo(*A, *held)
    found = classify(A, 10, 60, info, away=away)
    assert type(found) is (type(None) if kind is None else kind)
    if found is not None:
        assert found.wanted == (59 if held == (0, 59) else 10)


@pytest.mark.parametrize(
    ("loss", "silent", "waits"),
    [
        (LOSSES[0], False, True),
        (LOSSES[1], False, False),
        (LOSSES[1], True, True),
        (LOSSES[2], False, True),
        (LOSSES[3], True, True),
    ],
)
def test_what_may_come_back_is_waited_for(loss: DataLossError, silent: bool, waits: bool) -> None:
    timeout_s = policy("true").options.fetch_timeout_s
    assert policy("true").waits(loss, timeout_s / 2, silent=silent) is waits
    assert not policy("true").waits(loss, timeout_s, silent=silent)


SHORT = DataLossError("t", "A", 10, None, "it ends there")
LONG = DataLossError("t", "A", 10, 5, "it ends there")
GAP = DataLossError("t", "A", 10, 30, "trimmed")
SMALL_GAP = DataLossError("t", "A", 10, 20, "trimmed")
HOLE = StoreLostDataError("t", "A", 10, 12, "a hole", lost_end=12)
AWAY = StoreUnreachableError("S", "gone")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], None),
        ([AWAY], None),
        ([GAP, AWAY], None),
        ([SHORT], SHORT),
        ([LONG, SHORT], LONG),
        ([GAP, HOLE, SHORT], HOLE),
    ],
)
def test_all_sources_must_lack_a_record(
    given: list[DafkaError], said: DataLossError | None
) -> None:
    assert denial(given, 10, 60) is said


@pytest.mark.parametrize(("end", "lost_end"), [(60, 20), (15, 15)])
def test_what_all_sources_have_trimmed(end: int, lost_end: int) -> None:
    found = denial([SHORT, GAP, SMALL_GAP], 10, end)
    assert isinstance(found, RetentionAheadError)
    assert (found.wanted, found.available, found.lost_end) == (10, 20, lost_end)
