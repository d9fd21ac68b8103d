"""Which blocks are merged: few small ones are left, and records are written few times."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dafka_core.storage import block as block_format
from dafka_core.storage.block_rewriter import MergeCandidate, to_merge


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
def test_which_part_of_a_stretch(
    records: tuple[int, ...], expected: tuple[int, int] | None
) -> None:
    for size_bytes in (10, 1):
        stretch = blocks(*records, size_bytes=size_bytes)
        assert to_merge(stretch) == (stretch[slice(*expected)] if expected else [])


def test_bytes_count_as_records_do() -> None:
    for counts, stop in (((20, 20, 20), 3), ((45, 45, 45), 2)):
        stretch = blocks(*counts, size_bytes=1000)
        assert to_merge(stretch) == stretch[:stop]
    assert not MergeCandidate(0, 20, 49_999).is_large
    assert MergeCandidate(0, 20, 50_000).is_large
    assert MergeCandidate(0, 500, 20).is_large


def test_only_neighbours_are_merged() -> None:
    apart = [
        MergeCandidate(0, 300, 10),
        MergeCandidate(300, 100, 10),
        MergeCandidate(401, 300, 10),
        MergeCandidate(701, 100, 10),
    ]
    assert to_merge(apart) == apart[:2]
    assert to_merge(apart[2:]) == []


def test_what_lies_before_a_large_block_becomes_one() -> None:
    small, large = blocks(100, 50, 20), MergeCandidate(170, 900, 900)
    assert to_merge(small) == []
    assert to_merge([*small, large]) == small
    after = MergeCandidate(1070, 3, 30)
    assert to_merge([MergeCandidate(0, 170, 1700), large, after]) == []


@given(st.lists(st.integers(1, 499), min_size=1, max_size=300), st.integers(0, 2**32))
@example([1, 1, 2], 391743)
def test_small_blocks_do_not_stay_and_records_are_written_few_times(
    counts: list[int], seed: int
) -> None:
    """As the log does it, with the records of an append as one block."""
    chance = random.Random(seed)
    table: list[MergeCandidate] = []
    offset = written = 0
    for records in [1] * 400 + counts:
        table.append(MergeCandidate(offset, records, records))
        offset += records
        while chance.random() < 0.7 and (found := to_merge(table)):
            written += merge(table, found)
    while found := to_merge(table):
        written += merge(table, found)
    assert sum(block.records for block in table) == offset
    assert written <= 4 * offset
    # Nine at most of each of three sizes wait for a tenth.
    assert len(table) <= 27 + 4 * offset / 1000


def merge(table: list[MergeCandidate], found: list[MergeCandidate]) -> int:
    assert len(found) > 1
    at, records = table.index(found[0]), sum(block.records for block in found)
    assert table[at : at + len(found)] == found
    assert found[-1].end == found[0].first + records
    assert records <= 1000
    table[at : at + len(found)] = [MergeCandidate(found[0].first, records, records)]
    return records
