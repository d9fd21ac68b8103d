"""Making blocks: of values, behind a block, of several blocks; each within its limits."""

from __future__ import annotations

import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.timestamps import stamped_once
from dafka_core.storage import block as module
from dafka_core.storage.block import Block, build_blocks, merge
from tests.unit.protocol.strategies import runs_of
from tests.unit.storage.packing import TIMES_US, VALUES, each_time, pack


@given(st.lists(st.tuples(VALUES, TIMES_US), min_size=1, max_size=5), st.data())
def test_merging_and_slicing_are_those_of_lists(
    parts: list[tuple[list[bytes], int]], data: st.DataObject
) -> None:
    values = [value for part, _ in parts for value in part]
    times = [time_us for part, time_us in parts for _ in part]
    merged = merge([Block.parse(pack(part, time_us)) for part, time_us in parts])
    block = Block.parse(merged)
    assert block.values.to_list() == values
    assert each_time(block.times) == times
    runs = block.times[:, 1]
    assert (runs[1:] != runs[:-1]).all()
    alone = merge([block])
    assert len(alone) == block.size_bytes
    assert Block.parse(alone).values.to_list() == values

    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    batch = RecordBatch(TopicPartition("t", "P"), 7, block.values, times=block.times)
    part = batch.between(7 + start, 7 + stop)
    again = data.draw(st.integers(start, stop - 1))
    for sliced, first in ((part, start), (part.between(7 + again, part.end), again)):
        assert (sliced.offset, sliced.end) == (7 + first, 7 + stop)
        assert sliced.values.to_list() == values[first:stop]
        assert sliced.values.to_arrow().to_pylist() == values[first:stop]
        assert each_time(sliced.times) == times[first:stop]
        assert bytes(sliced.values.columns()[1]) == b"".join(values[first:stop])
        assert sliced.values.size_bytes == len(b"".join(values[first:stop]))


@given(VALUES, VALUES, st.integers(0, 1), st.integers(0, 1))
def test_extending_is_merging(old: list[bytes], new: list[bytes], old_us: int, new_us: int) -> None:
    first = Block.parse(pack(old, old_us))
    (piece,) = build_blocks(new, stamped_once(len(new), new_us), 0, first)
    assert piece == (-len(old), merge([first, Block.parse(pack(new, new_us))]))


def test_what_cannot_be_a_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        pack([], 0)
    with pytest.raises(ValueError, match="no block to merge"):
        merge([])
    with pytest.raises(TypeError, match="must be bytes"):
        pack([array.array("i", [1, 2, 3])], 0)  # type: ignore[list-item]
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 4)
    with pytest.raises(ValueError, match="value 1 has 5 bytes"):
        pack([b"fits", b"not!!"], 0)


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.booleans(),
    st.lists(st.integers(2, 5), max_size=60),
)
def test_pieces_are_small_and_complete(sizes: list[int], extends: bool, stamps: list[int]) -> None:
    times = np.array(runs_of(len(sizes), [*stamps, 9]))
    values = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    old = Block.parse(pack([b"old", b"er"], 1)) if extends else None
    limit = 300
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_BLOCK_BYTES", limit)
        pieces = list(build_blocks(values, times, 0, old))
    assert pieces[0][0] in {0, -2}
    found: list[bytes] = []
    found_times: list[int] = []
    for start, packed in pieces:
        block = Block.parse(packed)
        assert start - pieces[0][0] == len(found)
        found_times += each_time(block.times)
        assert len(packed) <= limit or (block.count == 1 and start >= 0)
        found += block.values.to_list()
    expected = [b"old", b"er"] if pieces[0][0] else []
    assert found == expected + values
    assert found_times == [1] * len(expected) + each_time(times)


def test_only_pieces_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 300)
    assert Block.parse(pack([b"x" * 1000], 0)).values.to_list() == [b"x" * 1000]
    assert len(list(build_blocks([b"x" * 150, b"y" * 150], stamped_once(2, 0), 0))) == 2
    blocks = [Block.parse(pack([b"x" * 150], 0)), Block.parse(pack([b"y" * 150], 0))]
    with pytest.raises(ValueError, match="2 blocks exceed 300 bytes"):
        merge(blocks)


def test_blocks_that_fit_are_made_in_the_memory_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 300)
    values, times = [b"x" * 100, b"y" * 100, b"z" * 1000, b""], stamped_once(4, 7)
    expected = [bytes(packed) for _, packed in build_blocks(values, times, 0)]
    into = bytearray(b"\xff" * 400)
    made_there = []
    made = build_blocks(values, times, 0, None, into)
    for (_, packed), alone in zip(made, expected, strict=True):
        assert packed == alone
        made_there.append(packed.obj is into)
    assert made_there == [len(alone) <= len(into) for alone in expected]
    assert set(made_there) == {True, False}
    blocks = [Block.parse(pack([value], 7)) for value in (b"a", b"b")]
    for room in (bytearray(10), bytearray(b"\xff" * 400)):
        assert merge(blocks, room) == merge(blocks)
