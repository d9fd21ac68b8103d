"""The conditions of lost records: their names, their facts, and what is done about them."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

from dafka_core.errors import DafkaError, DataLossError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark import errors
from dafka_spark.errors import (
    HeadBehindError,
    IncompleteBatchError,
    PartitionVanishedError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.source.data_loss import DataLossPolicy, judged

A = TopicPartition("t", "A")

LOSSES: list[SourceLossError] = [
    StoreLostDataError("t", "A", 40, end=40, lost_end=60),
    RetentionAheadError("t", "A", 10, 20),
    PartitionVanishedError("t", "A", 10, "S", 60),
    HeadBehindError("t", "A", 40, 40, "S", 3.0, 60),
]
INCOMPLETE = IncompleteBatchError("t", "A", 0, 9, expected=5, found=7, why="a gap")


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
    page = (Path(__file__).parents[2] / "docs" / "source.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(DAFKA_\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert dict(rows) == {kind.condition: kind.__name__ for kind in kinds}
    assert len({kind.condition for kind in kinds}) == len(kinds) == 5
    assert all(getattr(errors, name) in kinds for _, name in rows)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda error: error.condition)
def test_one_place_decides(loss: SourceLossError, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError) as caught:
        DataLossPolicy(fail=True).meet(loss)
    assert caught.value is loss
    assert "or set option failOnDataLoss to false" in str(loss)
    with caplog.at_level(logging.WARNING):
        DataLossPolicy(fail=False).meet(loss)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"[{loss.condition}] ")
    lost = f"offsets {loss.wanted} to {loss.lost_end} (exclusive) are left out"
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
    found = judged(A, 10, 60, info, away=away)
    assert type(found) is (type(None) if kind is None else kind)
    if found is not None:
        assert found.wanted == (59 if held == (0, 59) else 10)
