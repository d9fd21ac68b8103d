"""Going on elsewhere: with places that fail as a test wants, no network."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.columnar.columns import RecordColumns
from dafka_core.columnar.places import Place, this_machine
from dafka_core.errors import DafkaError, DataLossError, FetchTimeoutError, StoreUnreachableError
from dafka_spark.errors import FetchError
from dafka_spark.fetching import Fetch, FlightWay, LocalWay, MeshWay, Way, ways
from dafka_spark.options import SourceOptions
from dafka_spark.planning import OffsetRange
from tests.spark.memory import MemorySource

GONE = StoreUnreachableError("S", "connection lost")


@dataclass
class Scripted:
    """Has offsets ``[earliest, end)``; each of ``breaks`` ends one call, after so many records."""

    earliest: int = 0
    end: int = 100
    breaks: list[int] = field(default_factory=list)
    step: int = 7
    error: DafkaError = GONE
    asked: list[int] = field(default_factory=list)
    name: str = "a place"

    def read(self, wanted: OffsetRange, start: int, *, times: bool) -> Iterator[RecordColumns]:
        self.asked.append(start)
        stop = start + self.breaks.pop(0) if self.breaks else None
        if start < self.earliest:
            raise DataLossError("t", "A", start, self.earliest, "trimmed")
        if wanted.end > self.end:
            raise DataLossError("t", "A", max(start, self.end), None, "not there yet")
        while start < wanted.end:
            if stop is not None and start >= stop:
                raise self.error
            end = min(start + self.step, wanted.end, 10**9 if stop is None else stop)
            yield columns(start, end)
            start = end


def columns(start: int, end: int) -> RecordColumns:
    return RecordColumns(start, pa.array([b"%d" % n for n in range(start, end)], pa.binary()), None)


def options(fetch: str = "flight", **given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "300", **given})


def offsets(
    start: int, end: int, through: Sequence[Way], given: SourceOptions | None = None
) -> list[int]:
    fetch = Fetch(OffsetRange("t", "A", start, end), given or options(), through, times=False)
    found: list[int] = []
    for each in fetch.columns():
        assert each.values.to_pylist() == [b"%d" % n for n in range(each.offset, each.end)]
        found.extend(range(each.offset, each.end))
    return found


def test_one_place_is_enough() -> None:
    first, second = Scripted(), Scripted()
    assert offsets(3, 60, [first, second]) == list(range(3, 60))
    assert second.asked == []


def test_the_next_place_goes_on_from_the_record_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = Scripted(breaks=[20]), Scripted()
    with caplog.at_level(logging.WARNING):
        assert offsets(0, 60, [first, second]) == list(range(60))
    assert second.asked == [20]
    assert "connection lost" in caplog.text
    assert "going on elsewhere from offset 20" in caplog.text


@given(st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=4))
def test_not_a_record_is_lost_or_doubled(breaks: list[list[int]]) -> None:
    places = [Scripted(breaks=list(each)) for each in breaks]
    given_options = options(fetchtimeoutms="60000")
    # Nobody is waited for as long as somebody makes progress.
    places.append(Scripted(step=3))
    assert offsets(0, 100, places, given_options) == list(range(100))


def test_a_place_that_comes_back_is_waited_for() -> None:
    place = Scripted(breaks=[10, 0, 0])
    assert offsets(0, 30, [place], options(fetchtimeoutms="20000")) == list(range(30))
    assert place.asked == [0, 10, 10, 10]


def test_places_that_stay_away_are_an_error() -> None:
    places = [Scripted(breaks=[0] * 99, name="here"), Scripted(breaks=[5, *[0] * 99], name="there")]
    with pytest.raises(FetchError, match=r"offsets 5 to 30 .* fetch = flight: here: .*; there: "):
        offsets(0, 30, places)


def test_no_place_is_an_error() -> None:
    with pytest.raises(FetchError, match=r"no store that can be read so has them"):
        offsets(0, 30, [])


def test_what_one_place_lacks_another_may_have() -> None:
    assert offsets(0, 60, [Scripted(earliest=20), Scripted()]) == list(range(60))


def test_lost_is_what_every_place_lacks(caplog: pytest.LogCaptureFixture) -> None:
    places = [Scripted(earliest=40), Scripted(earliest=20)]
    with pytest.raises(DataLossError, match=r"offset 0 was asked for, offset 20 on is available"):
        offsets(0, 60, places)
    with caplog.at_level(logging.WARNING):
        found = offsets(0, 60, places, options(failondataloss="false"))
    assert found == list(range(20, 60))
    assert "failOnDataLoss is false" in caplog.text


def test_what_cannot_be_reached_is_not_lost() -> None:
    places = [Scripted(earliest=20), Scripted(breaks=[0] * 99)]
    with pytest.raises(FetchError, match=r"connection lost"):
        offsets(0, 60, places, options(failondataloss="false"))


def test_an_end_that_nobody_has(caplog: pytest.LogCaptureFixture) -> None:
    places = [Scripted(end=30), Scripted(end=40)]
    with pytest.raises(DataLossError, match=r"offset 40 was asked for, nothing is available"):
        offsets(0, 60, places)
    with caplog.at_level(logging.WARNING):
        assert offsets(0, 60, places, options(failondataloss="false")) == list(range(40))


@pytest.mark.parametrize("wrong", [[columns(1, 9)], [columns(0, 9)], [columns(0, 5)] * 2, []])
def test_replies_are_not_believed(wrong: list[RecordColumns]) -> None:
    class Wrong(Scripted):
        def read(self, wanted: OffsetRange, start: int, *, times: bool) -> Iterator[RecordColumns]:
            yield from wrong

    assert offsets(0, 8, [Wrong(), Scripted()]) == list(range(8))
    with pytest.raises(DataLossError, match=r"does not go on where the one before it ended"):
        offsets(0, 8, [Wrong()])


def test_the_mesh_comes_last() -> None:
    memory = MemorySource()
    memory.add("t", "A", 100)
    auto = options("auto", fetchtimeoutms="20000")
    through: list[Way] = [Scripted(breaks=[20]), MeshWay(memory.connect, auto)]
    assert offsets(0, 60, through, auto) == list(range(60))
    memory.trim("t", "A", 50)
    with pytest.raises(DataLossError, match=r"offset 0 was asked for, offset 50 on is available"):
        offsets(0, 60, [Scripted(breaks=[0]), MeshWay(memory.connect, auto)], auto)


def test_what_the_mesh_says_is_the_error_when_nobody_else_was_asked() -> None:
    class Silent(MemorySource):
        def read(self, *args: object, **given: object) -> Iterator[object]:  # type: ignore[override]
            raise FetchTimeoutError("t", "A", 0, 60, 0.3)

    auto = options("auto")
    way = MeshWay(Silent().connect, auto)
    with pytest.raises(FetchTimeoutError):
        offsets(0, 60, [way], auto)
    with pytest.raises(FetchError, match=r"a place: store S: .*; the mesh: .*did not arrive"):
        offsets(0, 60, [Scripted(breaks=[0] * 9), way], auto)


PLACES = (Place("A", ("grpc://127.0.0.1:1",)), Place("B", ("grpc://127.0.0.1:1",)))


@pytest.mark.parametrize(
    ("fetch", "kinds"),
    [
        ("local", [LocalWay, LocalWay]),
        ("flight", [FlightWay, FlightWay]),
        ("mesh", [MeshWay]),
        ("auto", [LocalWay, LocalWay, FlightWay, FlightWay, MeshWay]),
    ],
)
def test_ways(fetch: str, kinds: list[type]) -> None:
    found = ways(PLACES, options(fetch), MemorySource().connect)
    assert [type(way) for way in found] == kinds


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (Place("A", ()), "does not say where it is"),
        (Place("A", (), "/nowhere", "another", "s"), "on another machine"),
        (Place("A", (), "/nowhere", this_machine(), "s"), "cannot read /nowhere"),
    ],
)
def test_why_a_log_is_not_local(place: Place, says: str) -> None:
    local = options("local")
    with pytest.raises(FetchError, match=rf"fetch = local: the log of store A: .*{says}"):
        offsets(0, 60, ways([place], local, MemorySource().connect), local)
