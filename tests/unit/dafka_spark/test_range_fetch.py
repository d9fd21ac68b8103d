"""Going on elsewhere: with sources that fail as a test wants, no network."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import (
    CHANGED,
    DafkaError,
    DataLossError,
    FetchTimeoutError,
    HistoryChangedError,
    StoreUnreachableError,
)
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.where import Records
from dafka_spark.cluster import timing
from dafka_spark.errors import (
    FetchError,
    HeadBehindError,
    HistoryReplacedError,
    IncompleteBatchError,
    PartitionVanishedError,
    RetentionAheadError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import OffsetRange
from dafka_spark.source.record_sources import MeshSource, RangeFetch, RecordSource
from tests.memory_reader import MemoryReader

A = TopicPartition("t", "A")

OLD = EpochId(2, 7, 1)

GONE = StoreUnreachableError("S", "connection lost")


@pytest.fixture(scope="module", autouse=True)
def looking_often() -> Iterator[None]:
    """Sources in memory need no pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "LOOK_AGAIN_S", 0.001)
        yield


@dataclass
class Scripted:
    """Has offsets ``[earliest, end)``; each of ``breaks`` ends one call, after so many records.

    It is known to have ``known``, or all that a test reads.
    """

    earliest: int = 0
    end: int = 100
    breaks: list[int] = field(default_factory=list)
    step: int = 7
    error: DafkaError = GONE
    asked: list[int] = field(default_factory=list)
    name: str = "a source"
    known: range | None = range(1_000)
    there: bool = True

    def heads(self, topic: str) -> list[PartitionInfo]:
        if self.breaks:
            raise self.error
        return [PartitionInfo("t", "A", self.earliest, self.end)] if self.there else []

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        start = wanted.start
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
            yield batch(start, end)
            start = end


def batch(start: int, end: int) -> RecordBatch:
    return RecordBatch.of(A, start, [b"%d" % n for n in range(start, end)])


def options(fetch: str = "flight", **given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "20", **given})


def offsets(
    start: int, end: int, through: Sequence[RecordSource], given: SourceOptions | None = None
) -> list[int]:
    fetch = RangeFetch(OffsetRange("t", "A", start, end), given or options(), through)
    found: list[int] = []
    for each in fetch.batches():
        assert each.values.to_list() == [b"%d" % n for n in range(each.offset, each.end)]
        found.extend(range(each.offset, each.end))
    return found


def test_one_source_is_enough() -> None:
    first, second = Scripted(), Scripted()
    assert offsets(3, 60, [first, second]) == list(range(3, 60))
    assert second.asked == []


def test_the_next_source_goes_on_from_the_record_reached(
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
    scripted = [Scripted(breaks=list(each)) for each in breaks]
    given_options = options(fetchtimeoutms="60000")
    # No source is waited for as long as another one makes progress.
    scripted.append(Scripted(step=3))
    assert offsets(0, 100, scripted, given_options) == list(range(100))


def test_a_source_that_comes_back_is_waited_for() -> None:
    source = Scripted(breaks=[10, 0, 0])
    assert offsets(0, 30, [source], options(fetchtimeoutms="20000")) == list(range(30))
    assert source.asked == [0, 10, 10, 10]


def test_sources_that_stay_away_are_an_error() -> None:
    scripted = [
        Scripted(breaks=[0] * 99, name="here"),
        Scripted(breaks=[5, *[0] * 99], name="there"),
    ]
    with pytest.raises(FetchError, match=r"offsets 5 to 30 .* fetch = flight: here: .*; there: "):
        offsets(0, 30, scripted)


def test_no_source_is_an_error() -> None:
    with pytest.raises(FetchError, match=r"no store that can be read so has them"):
        offsets(0, 30, [])


def test_what_one_source_lacks_another_may_have() -> None:
    assert offsets(0, 60, [Scripted(earliest=20), Scripted()]) == list(range(60))


def test_trimmed_is_what_every_source_lacks(caplog: pytest.LogCaptureFixture) -> None:
    scripted = [Scripted(earliest=40), Scripted(earliest=20)]
    says = r"^\[DAFKA_RETENTION_AHEAD\] .* offset 0 was asked for, offset 20 on is available"
    with pytest.raises(RetentionAheadError, match=says) as caught:
        offsets(0, 60, scripted, options(fetchtimeoutms="60000"))  # nobody waits for it
    assert (caught.value.wanted, caught.value.available) == (0, 20)
    with caplog.at_level(logging.WARNING):
        found = offsets(0, 60, scripted, options(failondataloss="false"))
    assert found == list(range(20, 60))
    assert "offsets 0 to 20 (exclusive) are left out, as failOnDataLoss is false" in caplog.text
    assert "Start a store that still has the records" in caplog.text
    assert offsets(0, 10, scripted, options(failondataloss="false")) == []


def test_what_cannot_be_reached_is_not_lost() -> None:
    scripted = [Scripted(earliest=20), Scripted(breaks=[0] * 99)]
    with pytest.raises(FetchError, match=r"connection lost"):
        offsets(0, 60, scripted, options(failondataloss="false"))


def test_an_end_that_nobody_has(caplog: pytest.LogCaptureFixture) -> None:
    scripted = [Scripted(end=30), Scripted(end=40)]
    says = r"^\[DAFKA_STORE_LOST_DATA\] .* offset 40 was asked for, nothing is available"
    with pytest.raises(StoreLostDataError, match=says) as caught:
        offsets(0, 60, scripted)
    assert (caught.value.wanted, caught.value.end, caught.value.lost_end) == (40, 40, 60)
    with caplog.at_level(logging.WARNING):
        assert offsets(0, 60, scripted, options(failondataloss="false")) == list(range(40))
    assert "offsets 40 to 60 (exclusive) are left out" in caplog.text


def test_an_end_that_looks_lower_for_a_moment() -> None:
    """A store that starts, or that is catching up, is waited for."""

    class Growing(Scripted):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            self.end += 1
            return super().read(wanted)

    patient = options(fetchtimeoutms="60000")
    assert offsets(0, 60, [Growing(end=50), Scripted(end=55)], patient) == list(range(60))


def test_a_partition_that_no_source_knows() -> None:
    source = Scripted(end=0, there=False)
    with pytest.raises(PartitionVanishedError, match=r"^\[DAFKA_PARTITION_VANISHED\] .*no store"):
        offsets(5, 60, [source])
    assert offsets(5, 60, [source], options(failondataloss="false")) == []


def test_a_store_that_had_more_and_is_away() -> None:
    """The mesh has less: nothing is known to be lost while that store may come back."""
    memory = MemoryReader()
    memory.add(A, 40)
    auto = options("auto")

    class Mesh(MeshSource):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            raise DataLossError("t", "A", 40, 0, "the partition ends at 40 in every store")

    through: list[RecordSource] = [Scripted(breaks=[0] * 9), Mesh(memory.connect, auto)]
    says = r"^\[DAFKA_HEAD_BEHIND\] .* it ends at 40 .* store S, .* Start store S again"
    with pytest.raises(HeadBehindError, match=says) as caught:
        offsets(40, 60, through, auto)
    assert (caught.value.end, caught.value.store) == (40, "S")
    with pytest.raises(StoreLostDataError):
        offsets(40, 60, through[1:], auto)


@pytest.mark.parametrize("wrong", [[batch(0, 9)], [batch(0, 5)] * 2, []])
def test_replies_are_not_believed(wrong: list[RecordBatch]) -> None:
    class Wrong(Scripted):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            yield from wrong

    assert offsets(0, 8, [Wrong(), Scripted()]) == list(range(8))
    for fail in ("true", "false"):
        with pytest.raises(IncompleteBatchError, match=r"^\[DAFKA_INCOMPLETE_BATCH\] .*a source"):
            offsets(0, 8, [Wrong()], options(failondataloss=fail))


def test_a_hole_in_what_a_store_has() -> None:
    class Holed(Scripted):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            if wanted.start < 5:
                yield batch(wanted.start, 5)
            yield batch(max(wanted.start, 7), wanted.end)

    assert offsets(0, 9, [Holed(), Scripted()]) == list(range(9))
    with pytest.raises(StoreLostDataError, match=r"offset 5 was asked for, offset 7 on is avail"):
        offsets(0, 9, [Holed()])
    lenient = options(failondataloss="false")
    assert offsets(0, 9, [Holed()], lenient) == [0, 1, 2, 3, 4, 7, 8]


def test_records_that_no_store_has_between_those_that_there_are() -> None:
    through = [Scripted(end=40, known=range(40)), Scripted(earliest=60, known=range(60, 100))]
    says = r"offset 40 was asked for, offset 60 on is available"
    with pytest.raises(RetentionAheadError, match=says):
        offsets(0, 100, through)
    found = offsets(0, 100, through, options(failondataloss="false"))
    assert found == [*range(40), *range(60, 100)]


def test_a_store_that_says_it_has_what_it_does_not_give() -> None:
    class Denying(Scripted):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            yield from ()
            raise DataLossError("t", "A", wanted.start, None, "I have not")

    for fail in ("true", "false"):
        with pytest.raises(IncompleteBatchError, match=r"do not give it .*I have not"):
            offsets(0, 9, [Denying()], options(failondataloss=fail))


# -- each source is asked for what it has ----------------------------------------------------------


def test_sources_that_have_a_part_each() -> None:
    first = Scripted(end=60, known=range(60))
    second = Scripted(earliest=40, known=range(40, 100))
    assert offsets(0, 100, [second, first]) == list(range(100))
    assert (first.asked, second.asked) == ([0], [60])


def test_the_mesh_is_asked_for_what_no_other_source_has() -> None:
    memory = MemoryReader()
    memory.add(A, 100)
    auto = options("auto", fetchtimeoutms="20000")
    asked: list[tuple[int, int]] = []

    class Mesh(MeshSource):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            asked.append((wanted.start, wanted.end))
            return super().read(wanted)

    source = Scripted(earliest=10, end=60, known=range(10, 60))
    assert offsets(0, 100, [source, Mesh(memory.connect, auto)], auto) == list(range(100))
    assert (asked, source.asked) == ([(0, 10), (60, 100)], [10])
    # Where the source has gone meanwhile the mesh is asked for its part, too.
    asked.clear()
    gone = Scripted(breaks=[0] * 9, known=range(10, 60))
    assert offsets(0, 100, [gone, Mesh(memory.connect, auto)], auto) == list(range(100))
    assert asked == [(0, 10), (10, 100)]


@pytest.mark.parametrize("known", [range(30), range(50, 60), range(1_000), range(0)])
def test_what_is_known_of_a_source_may_be_old(known: range) -> None:
    assert offsets(0, 100, [Scripted(known=known)]) == list(range(100))
    less = [Scripted(end=60, known=known), Scripted(earliest=50, known=known)]
    assert offsets(0, 100, less) == list(range(100))


@given(
    st.lists(
        st.tuples(*[st.integers(0, 100)] * 4, st.lists(st.integers(0, 30), max_size=3)), max_size=4
    )
)
def test_whatever_sources_have_and_are_known_for(
    given_sources: list[tuple[int, int, int, int, list[int]]],
) -> None:
    scripted = []
    for a, b, c, d, breaks in given_sources:
        known = range(min(c, d), max(c, d))
        scripted.append(Scripted(min(a, b), max(a, b), list(breaks), known=known))
    everything = Scripted(step=3, known=range(0))
    assert offsets(0, 100, [*scripted, everything], options(fetchtimeoutms="60000")) == list(
        range(100)
    )


def test_the_mesh_comes_last() -> None:
    memory = MemoryReader()
    memory.add(A, 100)
    auto = options("auto", fetchtimeoutms="20000")
    through: list[RecordSource] = [Scripted(breaks=[20]), MeshSource(memory.connect, auto)]
    assert offsets(0, 60, through, auto) == list(range(60))
    memory.trim(A, 50)
    with pytest.raises(RetentionAheadError, match=r"offset 0 was asked for, offset 50 on is avail"):
        offsets(0, 60, [Scripted(breaks=[0]), MeshSource(memory.connect, auto)], auto)


def test_what_the_mesh_says_is_the_error_when_nobody_else_was_asked() -> None:
    class Silent(MemoryReader):
        def read(self, *args: object, **given: object) -> Iterator[object]:  # type: ignore[override]
            raise FetchTimeoutError("t", "A", 0, 60, 0.3)

    auto = options("auto")
    mesh = MeshSource(Silent().connect, auto)
    with pytest.raises(FetchTimeoutError):
        offsets(0, 60, [mesh], auto)
    with pytest.raises(FetchError, match=r"a source: store S: .*; the mesh: .*did not arrive"):
        offsets(0, 60, [Scripted(breaks=[0] * 9), mesh], auto)


@dataclass
class Replaced(Scripted):
    """From offset 40 on a newer producer has gone on; who asks for an older one's is told."""

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        if wanted.life == OLD and wanted.end > 40:
            raise HistoryChangedError("t", "A", 40, None, CHANGED, wanted.end)
        yield from super().read(wanted)


@pytest.mark.parametrize("start", [10, 50])
def test_a_history_that_has_changed_is_told(start: int) -> None:
    wanted = OffsetRange("t", "A", start, 60, life=OLD)
    fetch = RangeFetch(wanted, options(), [Replaced(), Replaced()])
    found: list[Records] = []
    with pytest.raises(HistoryReplacedError, match="DAFKA_HISTORY_CHANGED") as caught:
        found.extend(fetch.batches())
    assert sum(each.count for each in found) == max(0, 40 - start)
    assert (caught.value.wanted, caught.value.end) == (40, 60)


def test_a_query_may_go_on_with_the_history_that_is_there_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = OffsetRange("t", "A", 10, 60, life=OLD)
    fetch = RangeFetch(wanted, options(failondataloss="false"), [Replaced()])
    assert [n for each in fetch.batches() for n in range(each.offset, each.end)] == [*range(10, 60)]
    assert fetch.lost == []
    assert caplog.text.count("continues with the partition's present records") == 1


def test_another_store_may_still_have_the_history() -> None:
    fetch = RangeFetch(OffsetRange("t", "A", 10, 60, life=OLD), options(), [Replaced(), Scripted()])
    assert sum(each.count for each in fetch.batches()) == 50
