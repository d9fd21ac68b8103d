"""Units that come from another store, where they are committed: whole here, too, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import FencedError, OffsetConflictError
from dafka_core.records import NO_NUMBER, Run, Unit, UnitInfo
from dafka_core.storage import Discard, Log, Mark, WrongOffsetError
from tests.core.storage.clocks import Clock
from tests.core.storage.staged import A, B, facts, held, large, one, part, put, stage, told, values

UNIT = Unit(4, 3, 303)
RECORDS = large(300, "u")


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    """A log with three records."""
    with Log(tmp_path / "store", clock_us=clock) as opened:
        put(opened, values(3))
        yield opened


def test_a_whole_unit_is_seen_at_once(store: Log) -> None:
    assert store.write([part(RECORDS, UNIT, 3, 303)]) == [None]
    assert store.unit("t", "p") == UnitInfo(303, 303, "", UNIT)
    assert held(store) == values(3) + RECORDS
    put(store, [b"next"])
    assert store.unit("t", "p") == UnitInfo(304, 304, "", UNIT)


@pytest.mark.parametrize("ends", [(150, 303), (4, 5, 100, 302, 303)])
@pytest.mark.parametrize("together", [False, True])
def test_parts_of_a_unit_are_seen_with_the_last_one(
    store: Log, clock: Clock, ends: tuple[int, ...], together: bool
) -> None:
    seen = told(store)
    runs = [part(RECORDS, UNIT, start, end) for start, end in zip((3, *ends), ends, strict=False)]
    if together:
        store.append(runs)
    else:
        for run in runs[:-1]:
            clock.now_us += 1_000
            store.append([run])
            assert told(store) == seen
            assert store.unit("t", "p") == UnitInfo(3, run.end, "", None)
        store.append(runs[-1:])
    assert store.unit("t", "p") == UnitInfo(303, 303, "", UNIT)
    assert held(store) == values(3) + RECORDS
    assert len(store.times("t", "p", 3, 303)) == (1 if together else len(runs) - 1)


def test_a_unit_without_a_number_is_whole_and_leaves_the_marker(store: Log) -> None:
    store.append([part(RECORDS, UNIT, 3, 303)])
    other = Unit(NO_NUMBER, 303, 306)
    store.append([part(values(3), other, 303, 304)])
    assert store.end("t", "p") == 303
    store.append([part(values(3), other, 304, 306)])
    assert store.unit("t", "p") == UnitInfo(306, 306, "", UNIT)


def test_a_unit_begins_anew_at_the_end(store: Log) -> None:
    store.append([part(large(300, "x"), UNIT, 3, 203)])
    store.append([part(RECORDS, UNIT, 3, 103)])
    assert store.unit("t", "p") == UnitInfo(3, 103, "", None)
    store.append([part(RECORDS, UNIT, 103, 303)])
    assert held(store) == values(3) + RECORDS
    again = Unit(5, 303, 313)
    store.append([part(large(10), again, 303, 308)])
    store.append([part(values(10), again, 303, 313)])
    assert held(store) == values(3) + RECORDS + values(10)
    assert store.unit("t", "p").unit == again


def test_another_unit_does_not_go_on_with_what_is_staged(store: Log) -> None:
    store.append([part(RECORDS, UNIT, 3, 103)])
    for other in (Unit(5, 3, 303), Unit(4, 3, 304), Unit(4, 2, 303), Unit(4, 103, 303)):
        (outcome,) = store.write([Run.of("t", "p", 103, [b"x"], other)])
        assert facts(outcome) == (OffsetConflictError, "t", "p", 103, 3)
    for offset in (2, 4, 102, 104):
        (outcome,) = store.write([Run.of("t", "p", offset, [b"x"], Unit(4, 0, 303))])
        assert facts(outcome) == (OffsetConflictError, "t", "p", offset, 3)
    with pytest.raises(OffsetConflictError):
        store.append([Run.of("t", "p", 103, [b"x"], Unit(5, 3, 303))])
    assert store.unit("t", "p") == UnitInfo(3, 103, "", None)
    (outcome,) = store.write([Run.of("t", "q", 1, [b"x"], Unit(5, 0, 3))])
    assert facts(outcome) == (OffsetConflictError, "t", "q", 1, 0)
    assert store.info("t", "q") is None


@pytest.mark.parametrize(("start", "end"), [(2, 5), (302, 305), (2, 305)])
def test_a_run_must_lie_in_its_unit(store: Log, start: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"not all of unit 4, which has 3 to 303"):
        store.append([Run.of("t", "p", start, values(end - start), UNIT)])


def test_records_without_a_unit_show_that_the_one_before_them_is_whole(store: Log) -> None:
    """The other store does not remember it any more."""
    store.append([part(RECORDS, UNIT, 3, 103), part(RECORDS, UNIT, 103, 110)])
    store.append([Run.of("t", "p", 110, RECORDS[107:200])])
    assert store.unit("t", "p") == UnitInfo(203, 203, "", None)
    assert held(store) == values(3) + RECORDS[:200]
    store.append([Run.of("t", "p", 203, [*RECORDS[200:], b"next"])])
    assert held(store) == [*values(3), *RECORDS, b"next"]


@pytest.mark.parametrize("more", [0, 5])
def test_the_marker_is_set_when_they_are_the_rest_of_it(store: Log, more: int) -> None:
    store.append([part(RECORDS, UNIT, 3, 103)])
    store.append([Run.of("t", "p", 103, RECORDS[100:] + values(more))])
    assert store.unit("t", "p") == UnitInfo(303 + more, 303 + more, "", UNIT)
    assert held(store) == values(3) + RECORDS + values(more)


def test_records_without_a_unit_begin_anew_at_the_end(store: Log) -> None:
    store.append([part(RECORDS, UNIT, 3, 103)])
    store.append([Run.of("t", "p", 3, [b"x"])])
    assert store.unit("t", "p") == UnitInfo(4, 4, "", None)
    assert held(store) == [*values(3), b"x"]
    with pytest.raises(WrongOffsetError, match="the partition ends at 4"):
        store.append([Run.of("t", "p", 103, [b"x"])])


def test_older_markers_do_not_come_back(store: Log) -> None:
    newer = Unit(9, 0, 3)
    store.write([Mark("t", "p", newer)])
    store.append([part(RECORDS, UNIT, 3, 303)])
    assert store.unit("t", "p") == UnitInfo(303, 303, "", newer)
    again = Unit(8, 303, 306)
    store.append([part(values(3), again, 303, 304), part(values(3), again, 304, 306)])
    assert store.unit("t", "p") == UnitInfo(306, 306, "", newer)
    again = Unit(8, 306, 309)
    store.append([part(values(3), again, 306, 307)])
    store.append([Run.of("t", "p", 307, values(2))])
    assert store.unit("t", "p") == UnitInfo(309, 309, "", newer)


def test_replicas_and_attempts_take_over_from_each_other(store: Log) -> None:
    store.append([part(RECORDS, UNIT, 3, 103)])
    (outcome,) = store.write([stage([b"x"], 103)])
    assert facts(outcome) == (FencedError, "t", "p", A)
    (outcome,) = store.write([stage([b"x"], 3, number=3)])
    assert facts(outcome) == (FencedError, "t", "p", A)
    assert store.write([stage(large(200), 3, number=4)]) == [None]
    (outcome,) = store.write([part(RECORDS, UNIT, 103, 203)])
    assert facts(outcome) == (OffsetConflictError, "t", "p", 103, 3)
    assert store.write([part(RECORDS, UNIT, 3, 303)]) == [None]
    (outcome,) = store.write([one(A, 3, 203, 4)])
    assert facts(outcome) == (FencedError, "t", "p", A)
    assert held(store) == values(3) + RECORDS
    store.write([stage([b"a"], 303, B), one(B, 303, 304, 5)])
    store.write([part(values(2), Unit(6, 304, 306), 304, 305)])
    store.write([part(values(2), Unit(6, 304, 306), 305, 306)])
    assert store.write([one(B, 303, 304, 5)]) == [None]
    assert store.unit("t", "p") == UnitInfo(306, 306, B, Unit(6, 304, 306))


def test_what_another_store_did_not_finish_is_discarded(store: Log) -> None:
    store.append([part(RECORDS, UNIT, 3, 103)])
    assert store.write([Discard("t", "p", A), Discard("t", "p", "")]) == [None, None]
    assert store.unit("t", "p") == UnitInfo(3, 3, "", None)
    (outcome,) = store.write([part(RECORDS, UNIT, 103, 303)])
    assert facts(outcome) == (OffsetConflictError, "t", "p", 103, 3)


def test_a_unit_in_parts_lasts(tmp_path: Path) -> None:
    unit = Unit(0, 0, 300)
    with Log(tmp_path) as store:
        store.append([part(RECORDS, unit, 0, 100)])
    with Log(tmp_path) as store:
        assert store.partitions() == []
        assert store.unit("t", "p") == UnitInfo(0, 100, "", None)
        store.append([part(RECORDS, unit, 100, 300)])
    with Log(tmp_path) as store:
        assert held(store) == RECORDS
        assert store.unit("t", "p") == UnitInfo(300, 300, "", unit)
