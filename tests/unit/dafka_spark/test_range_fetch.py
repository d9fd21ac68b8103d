"""Fetching one range from sources that fail as a test needs, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

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
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
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
from dafka_spark.source.partition_reader import Fetched, LostOffsets, RangeFetch, complete
from dafka_spark.source.record_sources import MeshSource, RecordSource, current_archive_sources
from tests.integration.archive.records import archived
from tests.memory_reader import MemoryReader

A = TopicPartition("t", "A")

OLD = EpochId(2, 7, 1)

GONE = StoreUnreachableError("S", "connection lost")


@pytest.fixture(scope="module", autouse=True)
def short_pauses() -> Iterator[None]:
    """Sources in memory need no pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "POLL_INTERVAL_S", 0.001)
        yield


@dataclass
class Scripted:
    """A source of offsets ``[earliest, end)``.

    Each of ``breaks`` ends one call after that number of records with ``error``. ``there`` is
    false if the store does not know the partition.
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


LENIENT = options(failondataloss="false")


def offsets(
    start: int,
    end: int,
    through: Sequence[RecordSource],
    given: SourceOptions | None = None,
    life: EpochId = NO_LIFE,
) -> list[int]:
    wanted = OffsetRange("t", "A", start, end, life=life)
    fetch = RangeFetch(wanted, given or options(), through)
    found: list[int] = []
    for each in complete(fetch.batches(), [wanted]):
        assert isinstance(each, RecordBatch)
        assert each.values.to_list() == [b"%d" % n for n in range(each.offset, each.end)]
        found.extend(range(each.offset, each.end))
    return found


def test_one_source_is_enough() -> None:
    first, second = Scripted(), Scripted()
    assert offsets(3, 60, [first, second]) == list(range(3, 60))
    assert second.asked == []


def test_the_next_source_continues_at_the_next_record(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Scripted(breaks=[20]), Scripted()
    assert offsets(0, 60, [first, second]) == list(range(60))
    assert second.asked == [20]
    assert "continuing with another source at offset 20" in caplog.text


@given(st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=4))
def test_not_a_record_is_lost_or_doubled(breaks: list[list[int]]) -> None:
    scripted = [Scripted(breaks=list(each)) for each in breaks]
    given_options = options(fetchtimeoutms="60000")
    # The fetch waits for no source while others make progress.
    scripted.append(Scripted(step=3))
    assert offsets(0, 100, scripted, given_options) == list(range(100))


def test_a_source_that_comes_back_is_waited_for() -> None:
    source = Scripted(breaks=[10, 0, 0])
    assert offsets(0, 30, [source], options(fetchtimeoutms="20000")) == list(range(30))
    assert source.asked == [0, 10, 10, 10]


def test_progress_restarts_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow(Scripted):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            for each in super().read(wanted):
                now[0] += 30
                yield each

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(timing, "time", clock)
    given = options(fetchtimeoutms="20000")
    assert offsets(0, 30, [Slow(breaks=[10, 0])], given) == list(range(30))


def test_sources_that_stay_away_are_an_error() -> None:
    scripted = [
        Scripted(breaks=[0] * 99, name="here"),
        Scripted(breaks=[5, *[0] * 99], name="there"),
    ]
    with pytest.raises(FetchError, match=r"offsets 5 to 30 .* fetch = flight: here: .*; there: "):
        offsets(0, 30, scripted)


def test_no_source_is_an_error() -> None:
    with pytest.raises(FetchError, match=r"no store that can be read with it has the records"):
        offsets(0, 30, [])


def test_another_source_may_have_missing_records() -> None:
    assert offsets(0, 60, [Scripted(earliest=20), Scripted()]) == list(range(60))


def test_records_are_trimmed_if_every_source_lacks_them(caplog: pytest.LogCaptureFixture) -> None:
    scripted = [Scripted(earliest=40), Scripted(earliest=20)]
    with pytest.raises(RetentionAheadError, match=r"^\[DAFKA_RETENTION_AHEAD\]") as caught:
        offsets(0, 60, scripted, options(fetchtimeoutms="60000"))  # fails without waiting
    assert (caught.value.wanted, caught.value.available) == (0, 20)
    assert offsets(0, 60, scripted, LENIENT) == list(range(20, 60))
    assert "offsets 0 to 20 (exclusive) are left out, as failOnDataLoss is false" in caplog.text
    assert offsets(0, 10, scripted, LENIENT) == []


def test_records_of_an_unreachable_store_are_not_lost() -> None:
    scripted = [Scripted(earliest=20), Scripted(breaks=[0] * 99)]
    with pytest.raises(FetchError, match=r"connection lost"):
        offsets(0, 60, scripted, LENIENT)


def test_an_end_that_every_source_lacks(caplog: pytest.LogCaptureFixture) -> None:
    scripted = [Scripted(end=30), Scripted(end=40)]
    with pytest.raises(StoreLostDataError, match=r"^\[DAFKA_STORE_LOST_DATA\]") as caught:
        offsets(0, 60, scripted)
    assert (caught.value.wanted, caught.value.end, caught.value.lost_end) == (40, 40, 60)
    assert offsets(0, 60, scripted, LENIENT) == list(range(40))
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
    assert offsets(5, 60, [source], LENIENT) == []


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


def test_records_that_no_store_has_between_others() -> None:
    through = [Scripted(end=40, known=range(40)), Scripted(earliest=60, known=range(60, 100))]
    with pytest.raises(RetentionAheadError) as caught:
        offsets(0, 100, through)
    assert (caught.value.wanted, caught.value.available) == (40, 60)
    assert offsets(0, 100, through, LENIENT) == [*range(40), *range(60, 100)]


def test_a_loss_ends_where_the_archive_begins(tmp_path: Path) -> None:
    """The mesh reports what the stores trimmed, and does not know the archive."""
    archived(tmp_path, A, 60, start=40)
    memory = MemoryReader()
    memory.add(A, 100)
    memory.trim(A, 70)
    wanted = OffsetRange(*A, 10, 100)
    given = options("auto", archive=str(tmp_path), failondataloss="false")
    archive = current_archive_sources(str(tmp_path), wanted)
    fetched = list(
        RangeFetch(wanted, given, [*archive, MeshSource(memory.connect, given)]).batches()
    )
    lost = [(each.offset, each.end) for each in fetched if isinstance(each, LostOffsets)]
    assert lost == [(10, 40), (60, 70)]
    assert sum(each.count for each in complete(fetched, [wanted])) == 50


def test_stores_that_report_records_and_do_not_return_them() -> None:
    class Denying(Scripted):
        def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
            yield from ()
            raise DataLossError("t", "A", wanted.start, None, "missing")

    for fail in ("true", "false"):
        with pytest.raises(IncompleteBatchError, match=r"do not return .*missing"):
            offsets(0, 9, [Denying()], options(failondataloss=fail))


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
    # If the source is gone, the mesh is asked for its part, too.
    asked.clear()
    gone = Scripted(breaks=[0] * 9, known=range(10, 60))
    assert offsets(0, 100, [gone, Mesh(memory.connect, auto)], auto) == list(range(100))
    assert asked == [(0, 10), (10, 100)]


@pytest.mark.parametrize("known", [range(30), range(50, 60), range(1_000), range(0)])
def test_known_offsets_may_be_outdated(known: range) -> None:
    assert offsets(0, 100, [Scripted(known=known)]) == list(range(100))
    less = [Scripted(end=60, known=known), Scripted(earliest=50, known=known)]
    assert offsets(0, 100, less) == list(range(100))


@given(
    st.lists(
        st.tuples(*[st.integers(0, 100)] * 4, st.lists(st.integers(0, 30), max_size=3)), max_size=4
    )
)
def test_any_combination_of_sources_yields_all_records(
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


def test_the_error_of_the_mesh_if_it_was_the_only_source() -> None:
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
    """A newer producer replaced the records of ``OLD`` from offset 40 on."""

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        if wanted.life == OLD and wanted.end > 40:
            raise HistoryChangedError("t", "A", 40, None, CHANGED, wanted.end)
        yield from super().read(wanted)


@pytest.mark.parametrize("start", [10, 50])
def test_a_changed_history_is_an_error(start: int) -> None:
    wanted = OffsetRange("t", "A", start, 60, life=OLD)
    fetch = RangeFetch(wanted, options(), [Replaced(), Replaced()])
    found: list[Fetched] = []
    with pytest.raises(HistoryReplacedError, match="DAFKA_HISTORY_CHANGED") as caught:
        found.extend(fetch.batches())
    assert sum(each.end - each.offset for each in found) == max(0, 40 - start)
    assert (caught.value.wanted, caught.value.end) == (40, 60)


def test_a_query_may_continue_with_the_current_history(caplog: pytest.LogCaptureFixture) -> None:
    assert offsets(10, 60, [Replaced()], LENIENT, OLD) == [*range(10, 60)]
    assert caplog.text.count("DAFKA_HISTORY_CHANGED") == 1


def test_another_store_may_still_have_the_history() -> None:
    assert offsets(10, 60, [Replaced(), Scripted()], life=OLD) == [*range(10, 60)]
