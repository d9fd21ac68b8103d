"""Varints by column are those that aiokafka reads and writes one by one."""

from __future__ import annotations

import numpy as np
import pytest
from aiokafka.record.util import decode_varint, encode_varint
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.envelope_columns import put_varints
from dafka_core.envelope_heads import before
from dafka_core.kafka.records.varint_columns import (
    INT_OCTETS,
    LONG_OCTETS,
    read_varint,
    read_varints,
    widths_of,
    zigzag,
)

NUMBERS = st.integers(-70, 70) | st.integers(-(2**31), 2**31 - 1) | st.integers(-(2**63), 2**63 - 1)


def by_aiokafka(number: int) -> bytes:
    octets = bytearray()
    encode_varint(number, octets.append)
    return bytes(octets)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_numbers_are_written_and_read_as_others_do(numbers: list[int]) -> None:
    each = [by_aiokafka(number) for number in numbers]
    unsigned = zigzag(np.array(numbers, np.int64))
    widths = widths_of(unsigned)
    assert widths.tolist() == [len(octets) for octets in each]
    ends = before(widths)
    octets = np.empty(ends[-1], np.uint8)
    put_varints(octets, ends[:-1], unsigned.view(np.uint64), widths)
    assert octets.tobytes() == b"".join(each)
    found, after = read_varints(octets, ends[:-1], LONG_OCTETS)
    assert found.tolist() == numbers
    assert after.tolist() == ends[1:].tolist()


@given(st.binary(min_size=1, max_size=12))
def test_any_octets_are_a_number_or_lead_beyond_them(data: bytes) -> None:
    octets = np.frombuffer(data, np.uint8)
    numbers, after = read_varints(octets, np.array([0]), INT_OCTETS)
    number, end = read_varint(data, 0, INT_OCTETS)
    ends = [at for at, octet in enumerate(data) if octet < 0x80]
    if ends and ends[0] < INT_OCTETS:
        expected = decode_varint(bytearray(data), 0)
        assert (int(numbers[0]), int(after[0])) == (number, end) == expected
    else:
        assert min(after[0], end) > len(data)


@pytest.mark.parametrize("count", [1, 3])
def test_longer_ones_than_there_may_be_lead_beyond_all(count: int) -> None:
    octets = np.frombuffer(bytes([0x80] * 5 + [1]) * count, np.uint8)
    _, after = read_varints(octets, np.arange(0, 6 * count, 6), INT_OCTETS)
    assert (after > len(octets)).all()
