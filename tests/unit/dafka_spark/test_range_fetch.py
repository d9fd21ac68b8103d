"""Fetching one range from scripted sources, without a network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dafka_core.errors import (
    CHANGED,
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
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import OffsetRange
from dafka_spark.source.partition_reader import (
    Fetched,
    LostOffsets,
    MeshSource,
    RangeFetch,
    RecordSource,
    archive_sources,
    complete,
)
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

    Each of ``breaks`` ends one call after that number of records with ``GONE``. ``there`` is
    false if the store does not know the partition, ``denies`` true if it does not return what it
    reports. A newer producer replaced the records of ``OLD`` from offset ``replaced_at`` on. With
    each call the end grows by ``growth``.
    """

    earliest: int = 0
    end: int = 100
    breaks: list[int] = field(default_factory=list)
    step: int = 7
    asked: list[tuple[int, int]] = field(default_factory=list)
    name: str = "a source"
    known: range | None = range(1_000)
    there: bool = True
    replaced_at: int = 1_000
    denies: bool = False
    growth: int = 0

    def heads(self, topic: str) -> list[PartitionInfo]:
        if self.breaks:
            raise GONE
        return [PartitionInfo(*A, self.earliest, self.end)] if self.there else []

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        start = wanted.start
        self.end += self.growth
        self.asked.append((start, wanted.end))
        stop = start + self.breaks.pop(0) if self.breaks else None
        if wanted.life == OLD and wanted.end > self.replaced_at:
            raise HistoryChangedError(*A, self.replaced_at, None, CHANGED, wanted.end)
        if self.denies:
            raise DataLossError(*A, start, None, "missing")
        if start < self.earliest:
            raise DataLossError(*A, start, self.earliest, "trimmed")
        if wanted.end > self.end:
            raise DataLossError(*A, max(start, self.end), None, "not there yet")
        while start < wanted.end:
            if stop is not None and start >= stop:
                raise GONE
            end = min(start + self.step, wanted.end, 10**9 if stop is None else stop)
            yield RecordBatch.of(A, start, [b"%d" % offset for offset in range(start, end)])
            start = end


def options(fetch: str = "flight", **given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "20", **given})


AUTO = options("auto", fetchtimeoutms="20000")
PATIENT = options(fetchtimeoutms="60000")
LENIENT = options(failondataloss="false")


def offsets(
    start: int,
    end: int,
    through: Sequence[RecordSource],
    given: SourceOptions | None = None,
    life: EpochId = NO_LIFE,
) -> list[int]:
    wanted = OffsetRange(*A, start, end, life=life)
    fetch = RangeFetch(wanted, given or options(), through)
    found: list[int] = []
    for each in complete(fetch.batches(), [wanted]):
        assert isinstance(each, RecordBatch)
        assert each.values.to_list() == [b"%d" % n for n in range(each.offset, each.end)]
        found.extend(range(each.offset, each.end))
    return found


def mesh_of(count: int, earliest: int = 0) -> MeshSource:
    """The mesh with this number of records."""
    memory = MemoryReader({A: count})
    memory.trim(A, earliest)
    return MeshSource(memory.connect, AUTO)


def test_the_next_source_continues_at_the_next_record(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Scripted(), Scripted()
    assert offsets(3, 60, [first, second]) == list(range(3, 60))
    assert second.asked == []
    first.breaks = [20]
    assert offsets(0, 60, [first, second]) == list(range(60))
    assert second.asked == [(20, 60)]
    assert "continuing with another source at offset 20" in caplog.text


@given(
    st.lists(
        st.tuples(*[st.integers(0, 100)] * 4, st.lists(st.integers(0, 30), max_size=6)), max_size=4
    )
)
@example([])  # fails at once, where others would wait for their sources
def test_any_combination_of_sources_yields_all_records(
    given_sources: list[tuple[int, int, int, int, list[int]]],
) -> None:
    """The fetch waits for no source while others make progress."""
    scripted = []
    for a, b, c, d, breaks in given_sources:
        known = range(min(c, d), max(c, d))
        scripted.append(Scripted(min(a, b), max(a, b), list(breaks), known=known))
    everything = Scripted(step=3, known=range(0))
    assert offsets(0, 100, [*scripted, everything], PATIENT) == list(range(100))


def test_a_source_that_comes_back_or_catches_up_is_waited_for() -> None:
    source = Scripted(breaks=[10, 0, 0])
    assert offsets(0, 30, [source], PATIENT) == list(range(30))
    assert [start for start, _ in source.asked] == [0, 10, 10, 10]
    growing = Scripted(end=50, growth=1)
    assert offsets(0, 60, [growing, Scripted(end=55)], PATIENT) == list(range(60))


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
    away = [0] * 99
    scripted = [Scripted(breaks=away.copy(), name="here"), Scripted(breaks=[5, *away], name="far")]
    with pytest.raises(FetchError, match=r"offsets 5 to 30 .* fetch = flight: here: .*; far: "):
        offsets(0, 30, scripted)
    # Its records are not lost.
    with pytest.raises(FetchError, match=r"connection lost"):
        offsets(0, 60, [Scripted(earliest=20), Scripted(breaks=away)], LENIENT)
    with pytest.raises(FetchError, match=r"no store that can be read with it has the records"):
        offsets(0, 30, [])


@pytest.mark.parametrize(
    ("through", "error", "lost", "lost_end"),
    [
        ([Scripted(earliest=40), Scripted(earliest=20)], RetentionAheadError, 0, 20),
        ([Scripted(earliest=90)], RetentionAheadError, 0, 60),
        (
            [Scripted(end=40, known=range(40)), Scripted(earliest=50, known=range(50, 100))],
            RetentionAheadError,
            40,
            50,
        ),
        ([Scripted(end=30), Scripted(end=40)], StoreLostDataError, 40, 60),
        ([Scripted(end=0, there=False)], PartitionVanishedError, 0, 60),
    ],
)
def test_records_are_lost_if_every_source_lacks_them(
    caplog: pytest.LogCaptureFixture,
    through: Sequence[RecordSource],
    error: type[SourceLossError],
    lost: int,
    lost_end: int,
) -> None:
    with pytest.raises(error) as caught:
        offsets(0, 60, through)
    assert (caught.value.wanted, caught.value.lost_end) == (lost, lost_end)
    assert offsets(0, 60, through, LENIENT) == [*range(lost), *range(lost_end, 60)]
    left_out = f"offsets {lost} to {lost_end} (exclusive) are left out, as failOnDataLoss is false"
    assert left_out in caplog.text
    assert offsets(0, 60, [*through, Scripted()]) == list(range(60))


def test_a_store_that_had_more_and_is_away() -> None:
    """The mesh has less: nothing is known to be lost while that store may come back."""
    auto = options("auto")
    through: list[RecordSource] = [Scripted(breaks=[0] * 9), mesh_of(40)]
    with pytest.raises(HeadBehindError) as caught:
        offsets(40, 60, through, auto)
    assert (caught.value.end, caught.value.store) == (40, "S")
    with pytest.raises(StoreLostDataError):
        offsets(40, 60, through[1:], auto)


def test_a_loss_ends_where_the_archive_begins(tmp_path: Path) -> None:
    """The mesh reports what the stores trimmed, and does not know the archive."""
    archived(tmp_path, A, 60, start=40)
    wanted = OffsetRange(*A, 10, 100)
    given = options("auto", archive=str(tmp_path), failondataloss="false")
    archives = archive_sources(str(tmp_path), wanted)
    through: list[RecordSource] = [*archives, mesh_of(100, earliest=70)]
    fetched = list(RangeFetch(wanted, given, through).batches())
    lost = [(each.offset, each.end) for each in fetched if isinstance(each, LostOffsets)]
    assert lost == [(10, 40), (60, 70)]
    assert sum(each.count for each in complete(fetched, [wanted])) == 50


@pytest.mark.parametrize("given", [options(), LENIENT])
def test_stores_that_report_records_and_do_not_return_them(given: SourceOptions) -> None:
    with pytest.raises(IncompleteBatchError, match=r"do not return .*missing"):
        offsets(0, 9, [Scripted(denies=True)], given)


@pytest.mark.parametrize(
    ("breaks", "asked"), [([], [(0, 10), (60, 100)]), ([0] * 9, [(0, 10), (10, 100)])]
)
def test_the_mesh_is_asked_for_what_no_other_source_has(
    breaks: list[int], asked: list[tuple[int, int]]
) -> None:
    """If the other source is gone, the mesh is asked for its part, too."""
    mesh = Scripted(known=None)
    source = Scripted(earliest=10, end=60, breaks=breaks, known=range(10, 60))
    assert offsets(0, 100, [source, mesh], AUTO) == list(range(100))
    assert mesh.asked == asked


def test_the_mesh_decides_what_is_lost_and_which_error_is_raised() -> None:
    class Silent(MemoryReader):
        def read(self, *args: object, **given: object) -> Iterator[object]:  # type: ignore[override]
            raise FetchTimeoutError(*A, 0, 60, 0.3)

    with pytest.raises(RetentionAheadError, match=r"offset 0 was asked for, offset 50 on is avail"):
        offsets(0, 60, [Scripted(breaks=[0]), mesh_of(100, earliest=50)], AUTO)
    mesh = MeshSource(Silent().connect, AUTO)
    with pytest.raises(FetchTimeoutError):
        offsets(0, 60, [mesh], AUTO)
    with pytest.raises(FetchError, match=r"a source: store S: .*; the mesh: .*did not arrive"):
        offsets(0, 60, [Scripted(breaks=[0] * 9), mesh], AUTO)


@pytest.mark.parametrize("start", [10, 50])
def test_a_changed_history_is_an_error_unless_an_option_allows_it(
    start: int, caplog: pytest.LogCaptureFixture
) -> None:
    replaced = Scripted(replaced_at=40)
    fetch = RangeFetch(OffsetRange(*A, start, 60, life=OLD), options(), [replaced, replaced])
    found: list[Fetched] = []
    with pytest.raises(HistoryReplacedError, match="DAFKA_HISTORY_CHANGED") as caught:
        found.extend(fetch.batches())
    assert sum(each.end - each.offset for each in found) == max(0, 40 - start)
    assert (caught.value.wanted, caught.value.end) == (40, 60)
    caplog.clear()
    assert offsets(start, 60, [replaced, Scripted()], life=OLD) == [*range(start, 60)]
    assert "DAFKA_HISTORY_CHANGED" not in caplog.text  # another store still has it
    assert offsets(start, 60, [replaced], LENIENT, OLD) == [*range(start, 60)]
    assert caplog.text.count("DAFKA_HISTORY_CHANGED") == 1


def test_the_archive_has_no_records_of_a_newer_history(tmp_path: Path) -> None:
    archived(tmp_path, A, 60)
    wanted = OffsetRange(*A, 10, 60, life=OLD)
    archives = archive_sources(str(tmp_path), wanted)
    through: list[RecordSource] = [Scripted(replaced_at=40), *archives]
    with pytest.raises(HistoryReplacedError):
        list(RangeFetch(wanted, options(archive=str(tmp_path)), through).batches())
