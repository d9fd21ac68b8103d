"""Rate limits, and the tasks of a batch: split, joined, and assigned to stores."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import TopicPartition
from dafka_spark.options import RECORDS_PER_TASK, SourceOptions
from dafka_spark.source.offset_ranges import (
    MAX_JOINED_RANGES,
    MAX_JOINED_RECORDS,
    MIN_TASKS,
    DafkaInputPartition,
    HeldRange,
    Holders,
    OffsetRange,
    assign_stores,
    plan_tasks,
    rate_limit,
    split,
)


def key(name: object) -> TopicPartition:
    return TopicPartition("t", str(name))


def numbered(sizes: Sequence[int]) -> list[OffsetRange]:
    """Ranges of partitions 00000, 00001 ... with these sizes."""
    return [OffsetRange("t", f"{number:05}", 7, 7 + size) for number, size in enumerate(sizes)]


def held(*bounds: tuple[str, int, int]) -> list[HeldRange]:
    return [HeldRange(StoreLocation(store, ()), earliest, end) for store, earliest, end in bounds]


def stores(item: OffsetRange) -> str:
    return "".join(each.location.store for each in item.held)


def tasks(
    sizes: Sequence[int], holders: Holders | None = None, **given: str
) -> list[DafkaInputPartition]:
    return plan_tasks(numbered(sizes), holders or {}, SourceOptions.of({"subscribe": "t", **given}))


def lengths(sizes: Sequence[int], **given: str) -> list[int]:
    """The number of ranges of each task."""
    return [len(task.ranges) for task in tasks(sizes, {}, **given)]


def test_shares_follow_the_waiting_records() -> None:
    shares = rate_limit({key("a"): 900, key("b"): 90, key("c"): 1}, 100)
    assert shares[key("c")] == 1
    assert 85 <= shares[key("a")] <= 91


def test_partitions_take_turns_if_there_are_more_than_the_limit() -> None:
    waiting = {key(name): 100 for name in "abcde"}
    taken = dict.fromkeys(waiting, 0)
    for _ in range(5):
        for each, count in rate_limit(waiting, 2, turn=sum(taken.values())).items():
            taken[each] += count
            waiting[each] += 50
    assert set(taken.values()) == {2}


@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 10**12), max_size=20),
    st.none() | st.integers(1, 10**6),
    st.integers(0, 10**15),
)
def test_shares_are_exact_and_no_partition_starves(
    waiting: dict[int, int], limit: int | None, turn: int
) -> None:
    sizes = {key(name): size for name, size in waiting.items()}
    total = sum(sizes.values())
    shares = rate_limit(sizes, limit, turn=turn)
    assert sum(shares.values()) == min(limit or total, total)
    assert all(0 < shares[each] <= sizes[each] for each in shares)
    ready = {each for each, size in sizes.items() if size}
    if limit is None or limit >= len(ready):
        assert set(shares) == ready


@pytest.mark.parametrize(
    ("sizes", "given", "expected"),
    [
        ([0, 5], {}, [5]),
        ([10], {"max_records": 4}, [3, 3, 4]),
        ([1, 1000, 1], {"min_partitions": 6}, [1, 250, 250, 250, 250, 1]),
        ([5, 5, 5], {"min_partitions": 2}, [5, 5, 5]),
        ([4 * RECORDS_PER_TASK, 10], {}, [*[RECORDS_PER_TASK] * 4, 10]),
        ([RECORDS_PER_TASK], {}, [RECORDS_PER_TASK]),
        ([4 * RECORDS_PER_TASK], {"min_partitions": 1}, [4 * RECORDS_PER_TASK]),
    ],
)
def test_ranges_are_split_as_spark_does(
    sizes: list[int], given: dict[str, int], expected: list[int]
) -> None:
    backwards = OffsetRange("t", "b", 9, 3)
    assert [part.size for part in split([*numbered(sizes), backwards], **given)] == expected


def test_both_limits_hold() -> None:
    parts = split(numbered([100, 10]), min_partitions=6, max_records=50)
    assert len(parts) >= 6
    assert max(part.size for part in parts) <= 50


@given(
    st.lists(st.integers(0, 5000), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 3000),
)
def test_no_offset_is_lost_or_doubled(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = numbered(sizes)
    parts = split(whole, min_partitions=min_partitions, max_records=max_records)
    for item in whole:
        cuts = [(part.start, part.end) for part in parts if part.tp == item.tp]
        starts, ends = [item.start, *(end for _, end in cuts)], [*(s for s, _ in cuts), item.end]
        assert starts == ends
    assert all(0 < part.size <= (max_records or part.size) for part in parts)


def test_only_the_first_part_follows_earlier_records() -> None:
    life, after = EpochId(2, 7, 1), EpochId(1, 8, 1)
    parts = split([OffsetRange("t", "a", 0, 10, life=life, after=after)], max_records=4)
    assert [(part.life, part.after) for part in parts] == [(life, after), *[(life, NO_LIFE)] * 2]


# -- stores ----------------------------------------------------------------------------------------

A, B, C = EpochId(2, 2, 1), EpochId(1, 1, 1), EpochId(3, 3, 1)
FULL = held(("A", 20, 90), ("B", 0, 100), ("C", 0, 5), ("D", 0, 100))
PARTLY = held(("A", 10, 60), ("B", 40, 90))
OLDER = [
    each._replace(life=life)
    for each, life in zip(
        held(("A", 40, 90), ("B", 0, 100), ("C", 0, 100), ("D", 0, 100)),
        (A, B, A, NO_LIFE),
        strict=True,
    )
]


@pytest.mark.parametrize(
    ("start", "end", "known", "life", "turn", "no_mesh", "expected"),
    [
        # Stores with all of the range come first, and take turns.
        (30, 80, FULL, NO_LIFE, 0, False, "ABD"),
        (0, 95, FULL, NO_LIFE, 0, False, "BDAC"),
        (0, 95, FULL, NO_LIFE, 1, False, "DBCA"),
        (0, 10, [], NO_LIFE, 0, True, ""),
        # Stores with nothing of the range are only named where no mesh can be asked.
        (0, 100, PARTLY, NO_LIFE, 0, False, "AB"),
        (0, 30, PARTLY, NO_LIFE, 0, True, "A"),
        (95, 100, PARTLY, NO_LIFE, 0, False, ""),
        (95, 100, PARTLY, NO_LIFE, 0, True, "AB"),
        # Stores that do not know the newest producer come last, whatever the checkpoint knows; C
        # stores (D) know no producers and are not behind.
        (30, 80, OLDER[:3], NO_LIFE, 0, False, "CAB"),
        (30, 80, OLDER[:3], B, 0, False, "CAB"),
        (30, 80, OLDER[:3], A, 0, False, "CAB"),
        (30, 80, OLDER[:2], A, 0, False, "AB"),
        (30, 80, OLDER, A, 0, False, "CDAB"),
        (30, 80, OLDER, A, 1, False, "DCAB"),
        (30, 80, OLDER[:3], C, 1, False, "BCA"),
    ],
)
def test_the_best_store_comes_first(
    start: int,
    end: int,
    known: list[HeldRange],
    life: EpochId,
    turn: int,
    no_mesh: bool,
    expected: str,
) -> None:
    item = OffsetRange("t", "a", start, end, life=life)
    found = assign_stores(item, {item.tp: known}, turn, no_mesh=no_mesh)
    assert stores(found) == expected
    # Stores are a hint: they travel to executors, but do not distinguish ranges.
    assert (found, hash(found)) == (item, hash(item))
    assert pickle.loads(pickle.dumps(found)).held == found.held


def test_stores_share_the_tasks() -> None:
    every = held(("A", 0, 200), ("B", 0, 200))
    one = tasks([80], {key("00000"): every}, minpartitions="4")
    assert [stores(each) for task in one for each in task.ranges] == ["AB", "BA"] * 2
    many = tasks([10] * 64, {item.tp: every for item in numbered([10] * 64)})
    assert [{stores(each)[0] for each in task.ranges} for task in many] == [{"A"}, {"B"}] * 8


# -- tasks -----------------------------------------------------------------------------------------


def test_small_ranges_share_tasks() -> None:
    assert lengths([1] * (2 * MIN_TASKS - 1)) == [1] * 31
    assert lengths([10] * 1_000) == [62] * 16 + [8]
    assert set(lengths([10] * 10_000)) == {MAX_JOINED_RANGES}
    assert lengths([1, MAX_JOINED_RECORDS, 1, 1] * 100)[:4] == [1, 1, 3, 1]


def test_options_limit_how_many_ranges_share_a_task() -> None:
    assert lengths([10] * 100, minpartitions="1") == [100]
    assert lengths([10] * 100, minpartitions="50") == [2] * 50
    assert lengths([10] * 100, minpartitions="100") == [1] * 100
    assert lengths([10] * 100, maxrecordsperpartition="30") == [3] * 33 + [1]


SIZES = st.sampled_from([0, 1, 10, 999, 8_000, 19_999, 20_000, 20_001, 90_000])
BOUNDS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 90_000)), max_size=3)


@given(
    st.lists(SIZES, max_size=90),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1_000, 30_000),
    BOUNDS,
    st.sampled_from(["auto", "local", "flight", "mesh"]),
)
def test_ranges_and_options_alone_determine_the_tasks(
    sizes: list[int], least: int | None, most: int | None, seen: Any, fetch: str
) -> None:
    """A sink relies on that when a batch is repeated with other stores."""
    given = {"minpartitions": least, "maxrecordsperpartition": most}
    options = SourceOptions.of(
        {"subscribe": "t", "fetch": fetch, **{n: str(v) for n, v in given.items() if v}}
    )
    known = held(*((str(n), *bounds) for n, bounds in enumerate(seen)))
    whole = numbered(sizes)
    plan = plan_tasks(whole[::-1], {item.tp: known for item in whole}, options)
    assert plan == plan_tasks(whole, {}, options)
    parts = split(whole, min_partitions=least, max_records=most)
    assert [part for task in plan for part in task.ranges] == parts
    assert len(plan) >= min(len(parts), least or MIN_TASKS)
    for task in plan:
        records = sum(part.size for part in task.ranges)
        assert len(task.ranges) == 1 or records <= min(MAX_JOINED_RECORDS, most or records)
        assert len({part.tp for part in task.ranges}) == len(task.ranges) <= MAX_JOINED_RANGES
