"""Shares of a batch, and its tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka_spark.offsets import TopicPartition
from dafka_spark.planning import OffsetRange, rate_limit, split


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
