"""Rate limits, and the tasks of a batch: split, joined, and assigned to stores."""

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
    OffsetRange,
    StoreRange,
    rate_limit,
    split,
)
from dafka_spark.source.offset_ranges import plan_input_partitions as plan


def tp(name: object) -> TopicPartition:
    return TopicPartition("t", str(name))


def options(**given: object) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **{n: str(v) for n, v in given.items() if v}})


def ranges_of(sizes: Sequence[int]) -> list[OffsetRange]:
    """Ranges of partitions 00000, 00001 ... with these sizes."""
    return [OffsetRange("t", f"{number:05}", 7, 7 + size) for number, size in enumerate(sizes)]


def stores_of(*bounds: tuple[str, int, int]) -> list[StoreRange]:
    return [StoreRange(StoreLocation(store, ()), earliest, end) for store, earliest, end in bounds]


def names(item: OffsetRange) -> str:
    return "".join(each.location.store for each in item.stores)


def test_partitions_take_turns_if_there_are_more_than_the_limit() -> None:
    waiting = {tp(name): 100 for name in "abcde"}
    taken = dict.fromkeys(waiting, 0)
    for _ in range(5):
        for each, count in rate_limit(waiting, 2, turn=sum(taken.values())).items():
            taken[each] += count
            waiting[each] += 50
    assert set(taken.values()) == {2}


@given(
    st.dictionaries(st.integers(0, 30).map(tp), st.integers(0, 10**12), max_size=20),
    st.none() | st.integers(1, 10**6),
    st.integers(0, 10**15),
)
def test_a_rate_limit_is_exact_and_no_partition_starves(
    waiting: dict[TopicPartition, int], limit: int | None, turn: int
) -> None:
    total = sum(waiting.values())
    shares = rate_limit(waiting, limit, turn=turn)
    assert sum(shares.values()) == min(limit or total, total)
    assert all(0 < shares[each] <= waiting[each] for each in shares)
    ready = {each for each, size in waiting.items() if size}
    if limit is None or limit >= len(ready):
        assert set(shares) == ready
        part = sum(shares.values()) / max(total, 1)  # each gives one record, and this part
        assert all(abs(shares[each] - part * waiting[each]) <= len(ready) + 1 for each in ready)


@pytest.mark.parametrize(
    ("sizes", "max_records", "min_partitions", "expected"),
    [
        ([0, 5, -6], 0, 0, [5]),
        ([10], 4, 0, [3, 3, 4]),
        ([1, 1000, 1], 0, 6, [1, 250, 250, 250, 250, 1]),
        ([5, 5, 5], 0, 2, [5, 5, 5]),
        ([100, 10], 50, 6, [16, 17, 17] * 2 + [10]),
        ([4 * RECORDS_PER_TASK, 10], 0, 0, [*[RECORDS_PER_TASK] * 4, 10]),
        ([4 * RECORDS_PER_TASK], 0, 1, [4 * RECORDS_PER_TASK]),
    ],
)
def test_ranges_are_split_as_spark_does(
    sizes: list[int], max_records: int, min_partitions: int, expected: list[int]
) -> None:
    given = options(maxrecordsperpartition=max_records, minpartitions=min_partitions)
    assert [each.size for each in split(ranges_of(sizes), given)] == expected


def test_only_the_first_piece_of_a_range_follows_earlier_records() -> None:
    life, after = EpochId(2, 7, 1), EpochId(1, 8, 1)
    whole = OffsetRange("t", "a", 0, 10, life=life, after=after)
    pieces = split([whole], options(maxrecordsperpartition=4))
    assert [(each.life, each.after) for each in pieces] == [(life, after), *[(life, NO_LIFE)] * 2]


A, B, C = EpochId(2, 2, 1), EpochId(1, 1, 1), EpochId(3, 3, 1)
FULL = stores_of(("A", 20, 90), ("B", 0, 100), ("C", 0, 5), ("D", 0, 100))
PARTLY = stores_of(("A", 10, 60), ("B", 40, 90))
OLDER = stores_of(("A", 40, 90), ("B", 0, 100), ("C", 0, 100), ("D", 0, 100))
OLDER = [each._replace(life=life) for each, life in zip(OLDER, (A, B, A, NO_LIFE), strict=True)]


@pytest.mark.parametrize(
    ("start", "end", "known", "life", "fetch", "expected"),
    [
        # Stores with all of the range come first; the second task begins with the next store.
        (30, 80, FULL, NO_LIFE, "auto", ["ABD", "BDA"]),
        (0, 95, FULL, NO_LIFE, "auto", ["BDAC", "DBCA"]),
        (0, 10, [], NO_LIFE, "local", ["", ""]),
        # Stores without any of the range are named only if the mesh is not read.
        (0, 100, PARTLY, NO_LIFE, "mesh", ["AB", "BA"]),
        (0, 30, PARTLY, NO_LIFE, "local", ["A", "A"]),
        (95, 100, PARTLY, NO_LIFE, "auto", ["", ""]),
        (95, 100, PARTLY, NO_LIFE, "flight", ["AB", "AB"]),
        # Stores that do not know the newest producer come last, whatever the checkpoint knows; C
        # stores (D) know no producers and are not behind.
        (30, 80, OLDER[:3], B, "auto", ["CAB", "CAB"]),
        (30, 80, OLDER, A, "auto", ["CDAB", "DCAB"]),
        (30, 80, OLDER[:3], C, "auto", ["ABC", "BCA"]),
    ],
)
def test_the_best_store_comes_first(
    start: int, end: int, known: list[StoreRange], life: EpochId, fetch: str, expected: list[str]
) -> None:
    ranges = [OffsetRange("t", name, start, end, life=life) for name in "ab"]
    tasks = plan(ranges, lambda _: known, options(fetch=fetch))
    (one,), (other,) = (task.ranges for task in tasks)
    assert [names(one), names(other)] == expected
    # Stores are a hint: they travel to executors, but do not distinguish ranges.
    assert ([one, other], hash(one)) == (ranges, hash(ranges[0]))
    assert pickle.loads(pickle.dumps(one)).stores == one.stores


@pytest.mark.parametrize(
    ("sizes", "given", "expected"),
    [
        ([1] * (2 * MIN_TASKS - 1), {}, [1] * 31),
        ([10] * 1_000, {}, [62] * 16 + [8]),
        ([10] * 10_000, {}, [MAX_JOINED_RANGES] * 20),
        ([1, MAX_JOINED_RECORDS, 1, 1] * 100, {}, [1, *[1, 3] * 99, 1, 2]),
        ([10] * 100, {"minpartitions": 1}, [100]),
        ([10] * 100, {"minpartitions": 50}, [2] * 50),
        ([10] * 100, {"minpartitions": 100}, [1] * 100),
        ([10] * 100, {"maxrecordsperpartition": 30}, [3] * 33 + [1]),
    ],
)
def test_small_ranges_share_tasks(sizes: list[int], given: Any, expected: list[int]) -> None:
    tasks = plan(ranges_of(sizes), lambda _: [], options(**given))
    assert [len(task.ranges) for task in tasks] == expected


@given(
    st.lists(st.sampled_from([0, 1, 10, 999, 8_000, 19_999, 20_000, 20_001, 90_000]), max_size=90),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1_000, 30_000),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 90_000)), max_size=3),
    st.sampled_from(["auto", "local", "flight", "mesh"]),
)
def test_ranges_and_options_alone_determine_the_tasks(
    sizes: list[int], least: int | None, most: int | None, bounds: Any, fetch: str
) -> None:
    """A sink relies on that when Spark repeats a batch with other stores."""
    given = options(fetch=fetch, minpartitions=least, maxrecordsperpartition=most)
    known = stores_of(*((str(number), *each) for number, each in enumerate(bounds)))
    whole = ranges_of(sizes)
    tasks = plan(whole[::-1], lambda _: known, given)
    assert tasks == plan(whole, lambda _: [], given)
    pieces = [each for task in tasks for each in task.ranges]
    for item in whole:
        cuts = [(each.start, each.end) for each in pieces if each.tp == item.tp]
        assert [item.start, *(end for _, end in cuts)] == [*(at for at, _ in cuts), item.end]
    assert all(0 < each.size <= (most or each.size) for each in pieces)
    assert len(tasks) >= min(len(pieces), least or MIN_TASKS)
    for task in tasks:
        records = sum(each.size for each in task.ranges)
        assert len(task.ranges) == 1 or records <= min(MAX_JOINED_RECORDS, most or records)
        assert len({each.tp for each in task.ranges}) == len(task.ranges) <= MAX_JOINED_RANGES
