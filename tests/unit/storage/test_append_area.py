"""Groups: their content is found and returned, and nothing else."""

import struct

import pytest

from dafka_core.model.records import stamped_once
from dafka_core.storage.append_area import HEADER, Group, GroupedBlock, pack_group
from dafka_core.storage.block import ALIGNMENT, build_blocks

LAST = 2**64 - 1


def grouped(partition_id: int, first: int, *values: bytes) -> GroupedBlock:
    ((_, packed),) = build_blocks(values, stamped_once(len(values), 1_000), 1_000)
    return GroupedBlock(partition_id, first, len(values), bytes(packed))


BLOCKS = [
    grouped(0, 0, b"first", b""),
    grouped(3, 0, b""),
    grouped(3, 1, *[b"x" * 251] * 4),
    grouped(3, 7, b"after a gap"),
    grouped(LAST, LAST - 2, b"1234", b"5678"),
]


def test_what_is_packed_is_read() -> None:
    assert [block._replace(packed=bytes(block.packed)) for block in Group(pack_group(BLOCKS))] == (
        BLOCKS
    )


def test_blocks_are_found_by_partition() -> None:
    group = Group(pack_group(BLOCKS))
    for partition_id in (0, 1, 3, 4, LAST):
        expected = [block for block in BLOCKS if block.partition_id == partition_id]
        assert group.of_partition(partition_id) == expected


def test_blocks_lie_where_numbers_can_be_read_in_place() -> None:
    packed = pack_group(BLOCKS)
    for block in BLOCKS:
        assert bytes(packed).find(block.packed) % ALIGNMENT == 0


def test_a_directory_cut_short_or_changed_anywhere_is_refused() -> None:
    packed = pack_group(BLOCKS)
    for length in range(len(packed)):
        with pytest.raises(ValueError, match=r"."):
            Group(packed[:length])
    for position in range(bytes(packed).index(b"DafB")):
        changed = bytearray(packed)
        changed[position] ^= 0x10
        with pytest.raises(ValueError, match=r"."):
            Group(changed)


def test_a_group_of_another_format_names_both() -> None:
    packed = pack_group(BLOCKS)
    struct.pack_into("<H", packed, 4, 7)
    with pytest.raises(ValueError, match=r"format 7.*format 1"):
        Group(packed)
    with pytest.raises(ValueError, match="too few"):
        Group(bytes(HEADER.size - 1))
