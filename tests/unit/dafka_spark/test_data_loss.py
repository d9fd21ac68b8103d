"""The conditions of lost records, and the decision about them."""

import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import DafkaError, DataLossError, StoreUnreachableError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
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
from dafka_spark.source import data_loss
from dafka_spark.source.data_loss import DataLossPolicy, classify, denial
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, planned, reader

A, B, Z = (TopicPartition("t", name) for name in "ABZ")

LOST, TRIMMED, VANISHED, BEHIND, REPLACED = LOSSES = [
    StoreLostDataError("t", "A", 40, end=40, lost_end=60),
    RetentionAheadError("t", "A", 10, 20, lost_end=20),
    PartitionVanishedError("t", "A", 10, store="S", lost_end=60),
    HeadBehindError("t", "A", 40, end=40, store="S", waited_s=3.0, lost_end=60),
    HistoryReplacedError("t", "A", 40, end=60),
]
INCOMPLETE = IncompleteBatchError("t", "A", 0, 9, expected=5, found=7, why="a gap")


def policy(fail: str) -> DataLossPolicy:
    return DataLossPolicy(SourceOptions.of({"subscribe": "t", "failondataloss": fail}))


def test_the_documentation_has_every_condition() -> None:
    kinds: set[type[SourceLossError | IncompleteBatchError]]
    kinds = {*SourceLossError.__subclasses__(), IncompleteBatchError}
    page = (Path(__file__).parents[3] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(DAFKA_\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert dict(rows) == {kind.condition: kind.__name__ for kind in kinds}
    assert {type(each) for each in [*LOSSES, INCOMPLETE]} == kinds


@pytest.mark.parametrize("error", [*LOSSES, INCOMPLETE], ids=lambda error: error.condition)
def test_an_error_begins_with_its_condition_and_is_pickled(error: Any) -> None:
    text = str(error)
    assert text.startswith(f"[{error.condition}] topic 't', partition A: ")
    assert "Start " in text
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (text, vars(error))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda error: error.condition)
def test_one_policy_fails_or_warns(loss: SourceLossError, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError) as caught:
        policy("true").fail_or_warn(loss)
    assert caught.value is loss
    assert "or set option failOnDataLoss to false" in str(loss)
    policy("false").fail_or_warn(loss)
    lost = f"offsets {loss.wanted} to {loss.lost_end} (exclusive) are left out"
    if loss is REPLACED:
        lost = "the query continues with the partition's present records"
    assert caplog.messages == [f"{loss.finding}; {lost}, as failOnDataLoss is false. {loss.advice}"]


@pytest.mark.parametrize(
    ("held", "away", "kind", "wanted"),
    [
        ((0, 60), "", None, 0),
        ((10, 99), "S", None, 0),
        ((0, 59), "", StoreLostDataError, 59),
        ((0, 5), "", StoreLostDataError, 10),
        ((0, 59), "S", HeadBehindError, 59),
        ((11, 99), "S", RetentionAheadError, 10),
        (None, "S", PartitionVanishedError, 10),
    ],
)
def test_the_condition_follows_from_the_range(held: Any, away: str, kind: Any, wanted: int) -> None:
    found = classify(A, 10, 60, held and PartitionInfo(*A, *held), away=away)
    assert (found and (type(found), found.wanted)) == (kind and (kind, wanted))


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("loss", [LOST, TRIMMED, VANISHED, BEHIND])
def test_only_trimmed_records_cannot_come_back(loss: DataLossError, *, silent: bool) -> None:
    timeout_s = policy("true").options.fetch_timeout_s
    waits = silent or loss is not TRIMMED
    assert policy("true").waits(loss, timeout_s / 2, silent=silent) is waits
    assert not policy("true").waits(loss, timeout_s, silent=silent)


SHORT, LONG, GAP, SMALL_GAP = (
    DataLossError("t", "A", 10, available, "not available") for available in (None, 5, 30, 20)
)
AWAY = StoreUnreachableError("S", "gone")


@pytest.mark.parametrize(
    ("given", "found"),
    [([], None), ([AWAY], None), ([GAP, AWAY], None), ([SHORT], SHORT), ([LONG, SHORT], LONG)],
)
def test_all_sources_must_lack_a_record(given: list[DafkaError], found: Any) -> None:
    assert denial(given, 10, 60) is found
    for end in (60, 15):
        trimmed = denial([SHORT, GAP, SMALL_GAP], 10, end)
        assert isinstance(trimmed, RetentionAheadError)
        assert (trimmed.wanted, trimmed.available, trimmed.lost_end) == (10, 20, min(end, 20))


class ChangingReader(MemoryReader):
    """Applies ``changes``, one at each snapshot."""

    changes: Sequence[Callable[[], object]] = ()

    def partitions(self, *given: Any, timeout_s: float) -> list[PartitionInfo]:
        if self.changes:
            change, *self.changes = self.changes
            change()
        return super().partitions(*given, timeout_s=timeout_s)


class Clock:
    """A module ``time`` that moves by ``step_s`` whenever it is read."""

    now_s, step_s = 100.0, 0.0

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(data_loss, "time", found)
    return found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> ChangingReader:
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 0.001)
    return ChangingReader({A: 10, B: 20})


Lose = Callable[[MemoryReader], None]
CUT: Lose = lambda source: source.cut(A, 3)  # noqa: E731
DROP: Lose = lambda source: source.drop(A)  # noqa: E731
SHORTER = pytest.mark.parametrize("lose", [CUT, DROP])


@SHORTER
@pytest.mark.parametrize("ends", [False, True])
def test_a_partition_that_stays_shorter_is_lost(
    source: MemoryReader, clock: Clock, lose: Lose, *, ends: bool
) -> None:
    """With ``availableNow`` the same call waits."""
    stream = reader(source, fetchTimeoutMs="1")
    first = everything(stream)
    lose(source)
    if ends:
        stream.prepareForTriggerAvailableNow()
        clock.step_s = 0.0002
    else:
        assert stream.latestOffset(first, ALL) == first  # it may be shorter for a moment only

    def fails() -> bool:
        clock.now_s += 0.0009  # less than fetchTimeoutMs, so that the time counts
        return stream.latestOffset(first, ALL) != first

    with pytest.raises(StoreLostDataError if lose is CUT else PartitionVanishedError) as caught:
        wait_until(fails)
    assert caught.value.wanted == 10


@SHORTER
def test_a_loss_is_warned_of_once(
    source: MemoryReader, caplog: pytest.LogCaptureFixture, lose: Lose
) -> None:
    stream = reader(source, fetchTimeoutMs="1", failOnDataLoss="false")
    first = everything(stream)
    lose(source)

    def warned() -> bool:
        assert stream.latestOffset(first, ALL) == first
        return bool(caplog.messages)

    wait_until(warned)
    source.add(Z, 4)
    after = stream.latestOffset(first, ALL)  # the other partitions continue
    assert planned(stream, first, after) == {("Z", 0, 4)}
    (text,) = caplog.messages
    assert ("it ends at 3 now" if lose is CUT else "no store has the partition") in text


@SHORTER
def test_a_moment_is_no_loss_and_delays_no_other_partition(
    source: MemoryReader, clock: Clock, lose: Lose
) -> None:
    stream = reader(source, fetchTimeoutMs="1000")
    offset = everything(stream)
    kept = list(source.logs[A])
    for end in range(21, 27):  # longer than fetchTimeoutMs together
        lose(source)
        source.add(B, 1)
        after = stream.latestOffset(offset, ALL)
        assert planned(stream, offset, after) == {("B", end - 1, end)}
        assert after["topics"]["t"]["A"] == 10
        clock.now_s += 0.3
        source.logs[A] = list(kept)
        offset = after
        assert stream.latestOffset(offset, ALL) == offset


def test_an_empty_or_unselected_partition_may_vanish(source: MemoryReader) -> None:
    source.add(Z, 0)
    first = everything(reader(source))
    assert first["topics"]["t"]["Z"] == 0
    source.drop(Z)
    source.drop(A)
    stream = reader(source, assign='{"t": ["B", "Z"]}', fetchTimeoutMs="1")
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(first, ALL) == first


@SHORTER
def test_available_now_waits_for_a_store_that_catches_up(
    source: ChangingReader, lose: Lose
) -> None:
    first = everything(reader(source))
    caught_up = [*source.logs[A], b"x", b"y"]
    lose(source)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    source.changes = [lambda: None, lambda: None, lambda: source.logs.update({A: caught_up})]
    source.add(B, 9)  # after the end of this run
    after = stream.latestOffset(first, ALL)
    assert planned(stream, first, after) == {("A", 10, 12)}
    assert stream.latestOffset(after, ALL) == after


def test_a_query_with_rare_triggers_waits_for_stores(source: ChangingReader, clock: Clock) -> None:
    """Two triggers an hour apart may both fall into a moment."""
    stream = reader(source, fetchTimeoutMs="300")
    first = everything(stream)
    kept = list(source.logs[A])
    source.cut(A, 3)
    assert stream.latestOffset(first, ALL) == first
    clock.now_s += 3600.0
    source.changes = [lambda: None, lambda: source.logs.update({A: kept})]
    assert stream.latestOffset(first, ALL) == first
    assert source.logs[A] == kept


def test_trimmed_records_are_skipped_only_if_allowed(
    source: MemoryReader, caplog: pytest.LogCaptureFixture
) -> None:
    first = reader(source).initialOffset()
    source.trim(B, 15)
    strict, lenient = reader(source), reader(source, failOnDataLoss="false")
    assert ("B", 0, 20) in planned(strict, first, strict.latestOffset(first, ALL))
    end = lenient.latestOffset(first, ALL)
    assert planned(lenient, first, end) == {("A", 0, 10), ("B", 15, 20)}
    assert "offset 0 was asked for, offset 15 on is available" in caplog.text
