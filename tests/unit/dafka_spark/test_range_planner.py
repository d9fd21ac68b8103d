"""Shares of a batch, and its tasks."""

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


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", str(number), 100, 100 + size) for number, size in enumerate(sizes)]


def test_everything_when_the_limit_is_wide() -> None:
    assert rate_limit({key("a"): 3, key("b"): 0, key("c"): 4}, 7) == {key("a"): 3, key("c"): 4}


def test_shares_follow_what_is_waiting() -> None:
    shares = rate_limit({key("a"): 900, key("b"): 90, key("c"): 1}, 100)
    assert shares[key("c")] == 1
    assert sum(shares.values()) == 100
    assert 85 <= shares[key("a")] <= 91


def test_a_limit_below_the_number_of_partitions_goes_round() -> None:
    waiting = {key(name): 100 for name in "abcde"}
    taken = dict.fromkeys(waiting, 0)
    for _ in range(5):
        shares = rate_limit(waiting, 2, turn=sum(taken.values()))
        assert sum(shares.values()) == 2
        for each, count in shares.items():
            taken[each] += count
            waiting[each] += 50  # all go on growing
    assert set(taken.values()) == {2}


@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 10**12), max_size=20),
    st.integers(1, 10**6),
    st.integers(0, 10**15),
)
def test_shares_are_exact_and_nobody_starves(
    waiting: dict[int, int], limit: int, turn: int
) -> None:
    sizes = {key(name): size for name, size in waiting.items()}
    shares = rate_limit(sizes, limit, turn=turn)
    assert sum(shares.values()) == min(limit, sum(sizes.values()))
    assert all(0 < shares[each] <= sizes[each] for each in shares)
    if limit >= len([size for size in sizes.values() if size]):
        assert set(shares) == {each for each, size in sizes.items() if size}


def test_empty_ranges_are_left_out() -> None:
    backwards = OffsetRange("t", "b", 9, 3)
    assert split([*ranges(0, 5), backwards]) == ranges(0, 5)[1:]


def test_max_records_cuts_into_equal_parts() -> None:
    parts = split(ranges(10), max_records=4)
    assert [(part.start, part.end) for part in parts] == [(100, 103), (103, 106), (106, 110)]


def test_min_partitions_splits_the_large_ones() -> None:
    parts = split(ranges(1, 1000, 1), min_partitions=6)
    assert [part.partition for part in parts] == ["0", "1", "1", "1", "1", "2"]
    assert [part.size for part in parts] == [1, 250, 250, 250, 250, 1]


def test_min_partitions_is_no_maximum() -> None:
    assert len(split(ranges(5, 5, 5), min_partitions=2)) == 3


def test_both_limits_hold() -> None:
    parts = split(ranges(100, 10), min_partitions=6, max_records=50)
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
    whole = ranges(*sizes)
    parts = split(whole, min_partitions=min_partitions, max_records=max_records)
    for item in whole:
        at = item.start
        for part in parts:
            if part.partition == item.partition:
                assert part.start == at
                assert part.size > 0
                at = part.end
        assert at == item.end
    if max_records is not None:
        assert all(part.size <= max_records for part in parts)


def test_large_partitions_keep_all_cores_busy() -> None:
    parts = split(ranges(4 * RECORDS_PER_TASK, 10))
    assert [part.size for part in parts] == [*[RECORDS_PER_TASK] * 4, 10]
    assert split(ranges(RECORDS_PER_TASK)) == ranges(RECORDS_PER_TASK)
    assert len(split(ranges(4 * RECORDS_PER_TASK), min_partitions=1)) == 1


def held(*bounds: tuple[str, int, int]) -> list[HeldRange]:
    return [HeldRange(StoreLocation(store, ()), earliest, end) for store, earliest, end in bounds]


def stores(item: OffsetRange) -> str:
    return "".join(held.location.store for held in item.held)


def who(
    start: int, end: int, holders: Sequence[HeldRange], *, turn: int = 0, no_mesh: bool = False
) -> str:
    item = OffsetRange("t", "a", start, end)
    found = assign_stores(item, {key("a"): holders}, turn, no_mesh=no_mesh)
    assert found == item
    return stores(found)


def test_those_that_have_all_of_a_range_come_first() -> None:
    holders = held(("A", 20, 90), ("B", 0, 100), ("C", 0, 5), ("D", 0, 100))
    assert who(30, 80, holders) == "ABD"
    assert who(0, 95, holders) == "BDAC"
    assert who(0, 95, holders, turn=1) == "DBCA"
    assert who(0, 10, []) == ""


def test_those_that_have_some_of_it_are_named() -> None:
    holders = held(("A", 10, 60), ("B", 40, 90))
    assert who(0, 100, holders) == "AB"
    assert who(0, 30, holders) == "A"
    assert who(95, 100, holders) == ""
    # Where there is no mesh to ask they at least can say what they have.
    assert who(95, 100, holders, no_mesh=True) == "AB"
    assert who(0, 30, holders, no_mesh=True) == "A"


def test_those_that_have_heard_of_the_newest_producer_come_first() -> None:
    lives = {name: EpochId(number, number, 1) for name, number in (("A", 2), ("B", 1), ("C", 2))}

    def asked(planned: EpochId, *holders: HeldRange, turn: int = 0) -> str:
        item = OffsetRange("t", "a", 30, 80, life=planned)
        return stores(assign_stores(item, {key("a"): holders}, turn, no_mesh=False))

    a, b, c = [
        each._replace(life=lives[each.location.store])
        for each in held(("A", 40, 90), ("B", 0, 100), ("C", 0, 100))
    ]
    # The checkpoint of a batch that is run again knows no life or an older
    # one: what it has read is the partition's only if those say so that know of the newest.
    for planned in (NO_LIFE, lives["B"], lives["A"]):
        assert asked(planned, a, b, c) == "CAB"
        assert asked(planned, b, a) == "AB"
    # C stores know no producers, so they are not behind.
    (c_store,) = held(("D", 0, 100))
    assert asked(lives["A"], b, a, c, c_store) == "CDAB"
    assert asked(lives["A"], b, a, c, c_store, turn=1) == "DCAB"
    # Of one that only the mesh has heard of all of them are behind.
    assert asked(EpochId(3, 3, 1), a, b, c, turn=1) == "BCA"


def test_stores_share_the_work() -> None:
    holders = {key("00000"): held(("A", 0, 200), ("B", 0, 200), ("C", 0, 200))}
    parts = planned([80], holders, minpartitions="4")
    assert [stores(part) for (part,) in parts] == ["ABC", "BCA", "CAB", "ABC"]


def planned(
    sizes: Sequence[int], holders: Holders | None = None, **given: str
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task."""
    options = SourceOptions.of({"subscribe": "t", **given})
    tasks = plan_tasks(numbered(sizes), holders or {}, options)
    return [task.ranges for task in tasks]


def numbered(sizes: Sequence[int]) -> list[OffsetRange]:
    """In the order of their sizes also as text."""
    return [OffsetRange("t", f"{number:05}", 7, 7 + size) for number, size in enumerate(sizes)]


def test_few_ranges_have_a_task_each() -> None:
    assert [len(task) for task in planned([1] * (2 * MIN_TASKS - 1))] == [1] * 31


def test_small_ranges_share_tasks() -> None:
    assert [len(task) for task in planned([10] * 1_000)] == [62] * 16 + [8]
    assert {len(task) for task in planned([10] * 10_000)} == {MAX_JOINED_RANGES}


def test_what_is_large_has_its_own_task() -> None:
    large = MAX_JOINED_RECORDS
    tasks = planned([1, large, 1, 1] * 100)
    assert [len(task) for task in tasks[:4]] == [1, 1, 3, 1]
    assert {len(task) for task in tasks if task[0].size == large} == {1}


def test_options_say_how_far_ranges_share_tasks() -> None:
    assert [len(task) for task in planned([10] * 100, minpartitions="1")] == [100]
    assert [len(task) for task in planned([10] * 100, minpartitions="50")] == [2] * 50
    assert [len(task) for task in planned([10] * 100, minpartitions="100")] == [1] * 100
    assert [len(task) for task in planned([10] * 100, maxrecordsperpartition="30")] == [3] * 33 + [
        1
    ]


def test_ranges_that_share_a_task_are_read_from_one_store() -> None:
    names = [f"{number:05}" for number in range(64)]
    holders = {key(name): held(("A", 0, 200), ("B", 0, 200)) for name in names}
    firsts = [{stores(each)[0] for each in task} for task in planned([10] * 64, holders)]
    assert firsts == [{"A"}, {"B"}] * 8


@given(
    st.lists(st.sampled_from([0, 1, 10, 999, 8_000, 19_999, 20_000, 20_001, 90_000]), max_size=90),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1_000, 30_000),
    st.data(),
)
def test_every_record_is_in_one_task_and_no_task_is_too_large(
    sizes: list[int], least: int | None, most: int | None, data: st.DataObject
) -> None:
    options: dict[str, Any] = {}
    if least is not None:
        options["minpartitions"] = str(least)
    if most is not None:
        options["maxrecordsperpartition"] = str(most)
    bounds = st.tuples(st.integers(0, 300), st.integers(0, 90_000))
    seen = data.draw(st.lists(bounds, max_size=3))
    holders = {
        each.tp: held(*((str(n), *b) for n, b in enumerate(seen))) for each in numbered(sizes)
    }
    tasks = planned(sizes, holders, **options)
    assert tasks == planned(sizes, **options)
    apart = split(numbered(sizes), min_partitions=least, max_records=most)
    assert [part for task in tasks for part in task] == apart
    assert len(tasks) >= min(len(apart), least or MIN_TASKS)
    for task in tasks:
        assert len(task) == 1 or sum(part.size for part in task) <= min(
            MAX_JOINED_RECORDS, most or MAX_JOINED_RECORDS
        )
        assert len(task) <= MAX_JOINED_RANGES


def test_holders_are_a_hint() -> None:
    """They travel to executors, but two ranges with the same records are the same."""
    (bare,) = ranges(5)
    item = assign_stores(bare, {key("0"): held(("A", 0, 200))}, no_mesh=False)
    assert item == bare
    assert hash(item) == hash(bare)
    assert pickle.loads(pickle.dumps(item)).held == item.held != ()


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=5)
BOUNDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3200), st.integers(0, 3200)))


@given(SIZES, BOUNDS, BOUNDS, st.booleans(), st.sampled_from(["auto", "local", "flight", "mesh"]))
def test_a_plan_follows_from_ranges_and_options_alone(
    sizes: list[int],
    before: list[tuple[int, int, int]],
    after: list[tuple[int, int, int]],
    backwards: bool,
    fetch: str,
) -> None:
    """Whatever stores there are: a sink counts on it when a batch is run again."""
    options = SourceOptions.of({"subscribe": "t", "fetch": fetch, "maxrecordsperpartition": "700"})

    def plan(
        bounds: list[tuple[int, int, int]], wanted: list[OffsetRange]
    ) -> list[DafkaInputPartition]:
        holders: dict[TopicPartition, list[HeldRange]] = {}
        for number, (name, *pair) in enumerate(bounds):
            holders.setdefault(key(name), []).extend(held((str(number), min(pair), max(pair))))
        return plan_tasks(wanted, holders, options)

    whole = ranges(*sizes)
    assert plan(before, whole) == plan(after, whole[::-1] if backwards else whole)
    parts = [each for task in plan(before, whole) for each in task.ranges]
    assert parts == split(whole, max_records=700)


def test_a_plan_is_the_same_whatever_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SourceOptions.of({"subscribe": "t"})
    plans = []
    for cores in (1, 64):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        plans.append(plan_tasks(ranges(3 * RECORDS_PER_TASK), {}, options))
    assert plans[0] == plans[1]
    assert len(plans[0]) == 3


def test_only_the_first_part_follows_what_was_read() -> None:
    life, after = EpochId(2, 7, 1), EpochId(1, 8, 1)
    parts = split([OffsetRange("t", "a", 0, 10, life=life, after=after)], max_records=4)
    assert [(part.life, part.after) for part in parts] == [(life, after), *[(life, NO_LIFE)] * 2]
