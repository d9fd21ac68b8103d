"""Which blocks are merged: few small ones are left, and records are written few times."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dafka_core.storage import block as block_format
from dafka_core.storage import merge_planner as module
from dafka_core.storage.merge_planner import MergeCandidate, MergePlan, MergePlanner, window


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """A full block has 1000 records or 100 000 bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_format, "MAX_BLOCK_RECORDS", 1000)
        patch.setattr(block_format, "MAX_BLOCK_BYTES", 100_000)
        yield


def blocks(*records: int, size_bytes: int = 10) -> list[MergeCandidate]:
    """Blocks that follow each other."""
    made: list[MergeCandidate] = []
    for count in records:
        made.append(MergeCandidate(made[-1].end if made else 0, count, count * size_bytes))
    return made


def planner_of(*each: MergeCandidate) -> MergePlanner:
    planner = MergePlanner()
    for block in each:
        planner.add(7, block)
    return planner


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((), None),
        ((400,), None),
        ((1,) * 7, None),
        ((1,) * 8, (0, 8)),
        ((100, *(1,) * 8), (1, 9)),
        ((1,) * 9, (0, 9)),
        ((300, 200), (0, 2)),
        ((300, 199), None),
        ((400,) * 5, (0, 2)),
        ((300, 300, 300, 200), (0, 3)),
        ((10,) * 150, (0, 100)),
        ((499, 1), (0, 2)),
        ((80, 10, 10, 10, 10, 10, 10, 10), None),
    ],
)
def test_which_part_of_a_stretch(records: tuple[int, ...], expected: tuple[int, int]) -> None:
    for size_bytes in (10, 1):
        found = window(blocks(*records, size_bytes=size_bytes))
        assert (found and (found.start, found.stop)) == expected


def test_bytes_count_as_records_do() -> None:
    assert window(blocks(20, 20, 20, size_bytes=1000)) == slice(0, 3)
    assert window(blocks(45, 45, 45, size_bytes=1000)) == slice(0, 2)
    assert not MergeCandidate(0, 20, 49_999).worth_reading
    assert MergeCandidate(0, 20, 50_000).worth_reading
    assert MergeCandidate(0, 500, 20).worth_reading


def test_only_neighbours_are_merged() -> None:
    apart = [
        MergeCandidate(0, 300, 10),
        MergeCandidate(300, 100, 10),
        MergeCandidate(401, 300, 10),
        MergeCandidate(701, 100, 10),
    ]
    planner = planner_of(*apart)
    assert planner.plan() == MergePlan(7, apart[:2])
    planner.drop(7, apart[:2])
    assert planner.plan() is None


def test_what_lies_before_a_large_block_becomes_one() -> None:
    small = blocks(100, 50, 20)
    planner = planner_of(*small)
    assert planner.plan() is None
    planner.add(7, MergeCandidate(170, 900, 900))
    assert planner.plan() == MergePlan(7, small)
    planner.drop(7, small)
    planner.add(7, MergeCandidate(0, 170, 1700))
    assert planner.plan() is None
    planner.add(7, MergeCandidate(1073, 3, 30))
    assert planner.plan() is None
    assert planner.waiting == 0


def test_what_is_known_is_not_replaced_by_what_was() -> None:
    planner = planner_of(MergeCandidate(0, 400, 10))
    planner.add(7, MergeCandidate(0, 1, 10), replace=False)
    planner.add(7, MergeCandidate(400, 100, 10), replace=False)
    assert planner.waiting == 2
    assert planner.plan() == MergePlan(
        7, [MergeCandidate(0, 400, 10), MergeCandidate(400, 100, 10)]
    )
    planner.add(7, MergeCandidate(400, 700, 10))
    assert planner.plan() is None
    assert planner.waiting == 0


def test_partitions_are_planned_one_after_the_other() -> None:
    planner = MergePlanner()
    for partition_id in range(5):
        for block in blocks(300, 300):
            planner.add(partition_id, block)
    planned = []
    while (plan := planner.plan()) is not None:
        planned.append(plan.partition_id)
        planner.drop(plan.partition_id, plan.blocks)
    assert sorted(planned) == list(range(5))


def test_candidates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CANDIDATES", 10)
    planner = MergePlanner()
    for partition_id in (1, 2, 3):
        for block in blocks(300, 10, 10, 10):
            planner.add(partition_id, block)
    assert planner.waiting == 8
    plans = []
    while (plan := planner.plan()) is not None:
        plans.append(plan)
        planner.drop(plan.partition_id, plan.blocks)
    for block in blocks(*(1,) * 100):
        planner.add(1, block)
        assert planner.waiting <= 10
    plan = planner.plan()
    assert plan is not None
    assert plan.blocks[-1].end == 100


@given(st.lists(st.integers(1, 499), min_size=1, max_size=300), st.integers(0, 2**32))
@example([1, 1, 2], 391743)
def test_small_blocks_do_not_stay_and_records_are_written_few_times(
    counts: list[int], seed: int
) -> None:
    """As the log does it, with the records of an append as one block."""
    chance = random.Random(seed)
    planner, table, written = MergePlanner(), {}, 0
    offset = 0
    for records in [1] * 400 + counts:
        block = MergeCandidate(offset, records, records)
        table[offset] = block
        planner.add(0, block)
        offset = block.end
        while chance.random() < 0.7 and (plan := planner.plan()) is not None:
            written += merge(table, planner, plan)
    while (plan := planner.plan()) is not None:
        written += merge(table, planner, plan)
    assert sum(block.records for block in table.values()) == offset
    assert written <= 4 * offset
    # Nine at most of each of three sizes wait for a tenth.
    assert len(table) <= 27 + 4 * offset / 1000


def merge(table: dict[int, MergeCandidate], planner: MergePlanner, plan: MergePlan) -> int:
    assert len(plan.blocks) > 1
    first, records = plan.blocks[0].first, 0
    for block in plan.blocks:
        assert table.pop(block.first) == block
        assert block.first == first + records
        records += block.records
    assert records <= 1000
    table[first] = MergeCandidate(first, records, records)
    planner.drop(plan.partition_id, plan.blocks)
    planner.add(plan.partition_id, table[first])
    return records
