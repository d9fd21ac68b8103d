"""Blocks: what is packed is parsed, and anything else is refused."""

import array
import os
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import RecordBatch, TopicPartition, stamped_once
from dafka_core.model.values import Bytes, Longs
from dafka_core.storage import block as module
from dafka_core.storage.block import (
    CHECKED_FROM,
    HEADER,
    MAX_BODY_BYTES,
    NUMBERS,
    PIECE_BYTES,
    Block,
    build_blocks,
    compress,
    compressed,
    decompress,
    header_of,
    merge,
    peek_times,
    plain_size,
)
from tests.unit.protocol.strategies import runs_of

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
TIMES_US = st.integers(-(2**63), 2**63 - 1)


def pack(values: Sequence[bytes], timestamp_us: int) -> bytearray:
    """The values as one block, all written at ``timestamp_us``."""
    ((_, packed),) = build_blocks(values, stamped_once(len(values), timestamp_us), timestamp_us)
    return bytearray(packed)


def each_time(times: Longs | None) -> list[int]:
    """When each of the records was written."""
    assert times is not None
    told: list[int] = np.repeat(times[:, 1], times[:, 0]).tolist()
    return told


READ = pytest.mark.parametrize("read", [Block.parse, Block.copied])


def resealed(packed: bytes | bytearray, change: Callable[[bytearray], None]) -> bytearray:
    """Return the changed block with a matching checksum."""
    changed = bytearray(packed)
    change(changed)
    struct.pack_into("<Q", changed, 8, xxhash.xxh3_64_intdigest(changed[CHECKED_FROM:]))
    return changed


@READ
@given(VALUES, TIMES_US)
def test_what_is_packed_is_parsed(
    read: Callable[[Bytes], Block], values: list[bytes], time_us: int
) -> None:
    packed = pack(values, time_us)
    block = read(packed)
    assert block.count == len(values)
    assert block.size_bytes == len(packed)
    assert block.values.to_list() == values
    array = block.values.to_arrow()
    assert array.to_pylist() == values
    assert array.type == pa.binary()
    array.validate(full=True)
    assert block.times.tolist() == [[len(values), time_us]]
    assert each_time(block.times) == [time_us] * len(values)


@READ
@given(VALUES, TIMES_US, st.integers(1, 255))
def test_a_block_cut_short_or_changed_anywhere_is_refused(
    read: Callable[[Bytes], Block], values: list[bytes], time_us: int, mask: int
) -> None:
    packed = pack(values, time_us)
    for length in range(len(packed)):
        with pytest.raises(ValueError, match=r"."):
            read(packed[:length])
    for position in range(len(packed)):
        changed = bytearray(packed)
        changed[position] ^= mask
        with pytest.raises(ValueError, match=r"."):
            read(changed)
    with pytest.raises(ValueError, match="checksum"):
        read(packed + b"\0")


@pytest.mark.parametrize("over", [-1, 0, 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_a_copy_is_checked_to_its_last_byte_and_is_its_own(over: int) -> None:
    empty = len(pack([b""], 0))
    packed = pack([b"a" * (PIECE_BYTES + over - empty)], 0)
    assert len(packed) == PIECE_BYTES + over
    block = Block.copied(packed)
    expected = Block.parse(packed).values.to_list()
    for position in {16, PIECE_BYTES - 1, PIECE_BYTES, len(packed) - 1}:
        changed = bytearray(packed)
        changed[min(position, len(packed) - 1)] ^= 1
        with pytest.raises(ValueError, match="checksum"):
            Block.copied(changed)
    packed[:] = bytes(len(packed))
    assert block.values.to_list() == expected
    with pytest.raises(TypeError, match="read-only"):
        block.data[0] = 1


def test_a_block_of_another_format_names_both() -> None:
    packed = pack([b"a"], 0)
    struct.pack_into("<H", packed, 4, 7)
    with pytest.raises(ValueError, match=r"format 7.*formats 3 and 4"):
        Block.parse(packed)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: struct.pack_into("<I", b, 16, 0), "cannot hold 0 records"),
        (lambda b: struct.pack_into("<I", b, 16, 2**32 - 1), "cannot hold"),
        (lambda b: struct.pack_into("<I", b, 16, 2), "timestamps"),
        (lambda b: struct.pack_into("<I", b, 20, 2**31), "cannot hold"),
        (lambda b: struct.pack_into("<q", b, 32, -3), "timestamps"),
        (lambda b: struct.pack_into("<i", b, 48, 1), "offsets"),
        (lambda b: struct.pack_into("<i", b, 52, 9), "offsets"),
        (lambda b: struct.pack_into("<i", b, 52, -9), "offsets"),
        (lambda b: b.extend(b"x"), "offsets"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused_whatever_its_checksum(
    change: Callable[[bytearray], None], why: str
) -> None:
    packed = pack([b"one", b"two", b"three"], 5)
    assert Block.parse(resealed(packed, lambda _: None)).count == 3
    with pytest.raises(ValueError, match=why):
        Block.parse(resealed(packed, change))


@pytest.mark.parametrize("counts", [(2, 2), (0, 3), (-1, 4), (3, 1)])
def test_runs_of_timestamps_are_of_some_records_each_and_of_all_together(
    counts: tuple[int, int],
) -> None:
    packed = bytearray(
        merge([Block.parse(pack([b"one", b"two"], 5)), Block.parse(pack([b"x"], 6))])
    )

    def change(block: bytearray) -> None:
        struct.pack_into("<q8xq", block, 24, *counts)

    assert Block.parse(packed).times.tolist() == [[2, 5], [1, 6]]
    with pytest.raises(ValueError, match="timestamps"):
        Block.parse(resealed(packed, change))


def test_arrow_reads_the_buffer_itself() -> None:
    packed = bytes(pack([b"first", b"second"], 0))
    address = np.frombuffer(packed, np.uint8).ctypes.data
    _, offsets, data = Block.parse(packed).values.to_arrow().buffers()
    assert address < offsets.address < data.address < address + len(packed)
    assert (offsets.address - address) % 8 == (data.address - address) % 8 == 0


def test_an_array_outlives_everything_else() -> None:
    found = Block.parse(pack([b"a" * 1000] * 1000, 0)).values[10:15].to_arrow()
    assert found.to_pylist() == [b"a" * 1000] * 5


@pytest.mark.parametrize("codec", [1, 2])
def test_a_compressed_block_is_the_block(codec: int) -> None:
    values = [b"%d" % number * 9 for number in range(500)]
    packed = pack(values, 7)
    made = compressed(packed, codec)
    assert made is not None
    assert len(made) < len(packed) / 2
    plain, opened = Block.parse(packed), Block.copied(made)
    assert opened.values.to_arrow() == plain.values.to_arrow()
    assert opened.times.tolist() == plain.times.tolist()
    assert (opened.codec, opened.count, opened.size_bytes) == (codec, 500, len(packed))
    assert opened.head == bytes(made[: HEADER.size])
    assert header_of(made).records == 500
    assert peek_times(made).tolist() == plain.times.tolist()
    assert plain_size(made) == plain_size(packed) == len(packed)
    assert plain_size(b"none") == 4


@pytest.mark.parametrize("codec", [1, 2])
def test_every_changed_octet_of_a_compressed_block_is_found(codec: int) -> None:
    made = compressed(pack([b"abc" * 100] * 20, 0), codec)
    assert made is not None
    for at in range(len(made)):
        damaged = bytearray(made)
        damaged[at] ^= 0x10
        with pytest.raises(ValueError, match=r"it |its |bytes "):
            Block.parse(damaged)
    for size in range(len(made)):
        with pytest.raises(ValueError, match=r"it |its |bytes "):
            Block.parse(made[:size])


@pytest.mark.parametrize("size", [0, 1, 2**40, 2**64 - 1])
def test_a_block_that_claims_to_be_large_is_refused_before_room_is_made(size: int) -> None:
    """An attacker can compute checksums."""
    made = compressed(pack([b"abc" * 100] * 20, 0), 1)
    assert made is not None
    lying = resealed(bytes(made), lambda b: struct.pack_into("<Q", b, HEADER.size + 16, size))
    with pytest.raises(ValueError, match=r"cannot open to|cannot be decompressed"):
        Block.parse(lying)


def test_what_compression_makes_hardly_smaller_is_left() -> None:
    assert compressed(pack([os.urandom(1000)], 0), 1) is None


@pytest.mark.parametrize("number", NUMBERS.values())
@pytest.mark.parametrize("body", [b"x", b"." * 100_000, os.urandom(100_000)])
def test_what_is_compressed_comes_back(number: int, body: bytes) -> None:
    made = compress(number, memoryview(body))
    assert len(made) < len(body) / 100 or len(body) < 2 or body[0] != body[1] or body[1] != body[2]
    opened = decompress(number, made, len(body))
    assert opened == body
    assert (opened.format, opened.itemsize) == ("B", 1)


@pytest.mark.parametrize("number", NUMBERS.values())
def test_what_is_not_compressed_is_refused(number: int) -> None:
    for wrong in (b"", b"nothing of the kind", bytes(compress(number, b"." * 1000))[:-2]):
        with pytest.raises(ValueError, match="cannot be decompressed"):
            decompress(number, wrong, 1000)
    with pytest.raises(ValueError, match="cannot be decompressed"):
        decompress(number, compress(number, b"." * 1000), 999)
    for size_bytes in (0, MAX_BODY_BYTES + 1, 2**63):
        with pytest.raises(ValueError, match=f"cannot open to {size_bytes} bytes"):
            decompress(number, b"x", size_bytes)


def test_another_codec_is_named() -> None:
    with pytest.raises(ValueError, match="by codec 9, which this program does not know"):
        decompress(9, b"x", 1)


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
