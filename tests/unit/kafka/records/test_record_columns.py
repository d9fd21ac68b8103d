"""Decoding a batch by column, with every field possibly invalid, for a store."""

import pickle
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.util import decode_varint, encode_varint
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.envelope_columns import HEADERS_TYPE, before, put_varints
from dafka_core.model.records import UNKNOWN_US
from dafka_core.model.values import FEW
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.records import record_columns
from dafka_kafka.records.formats import NO_TIMESTAMP, BatchHead, KafkaBatch, milliseconds, times_of
from dafka_kafka.records.record_columns import (
    INT_OCTETS,
    LONG_OCTETS,
    MAX_RECORDS,
    RecordColumns,
    boundaries_of,
    boundaries_of_each,
    decode_records,
    encode_records,
    read_varint,
    read_varints,
    widths_of,
    zigzag,
)
from tests.unit.kafka.records.batches import START_MS, Parts, binary
from tests.unit.kafka.records.batches import by_aiokafka as batches_by_aiokafka

HEAD = 61


def record(*numbers: int, key: bytes = b"", value: bytes = b"", rest: bytes = b"") -> bytes:
    """A record of six numbers: deltas, key's length, value's length, number of headers."""
    stamp, offset, key_length, value_length, headers = numbers
    body = b"".join((bytes((0, stamp, offset, key_length)), key, bytes((value_length,)), value))
    body += bytes((headers,)) + rest
    return bytes((2 * len(body),)) + body


def listed(column: pa.Array | None) -> list[object]:
    assert column is not None
    return list(column.to_pylist())


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (record(0, 0, 1, 1, 0)[:-1], "are not 1 records"),
        (record(0, 0, 1, 1, 0) + b"\0", "are not 1 records"),
        (b"\x01" + record(0, 0, 1, 1, 0)[1:], "are not 1 records"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "are not 1 records"),
        (record(0, 2, 1, 1, 0), "offset deltas"),
        (record(0, 1, 1, 1, 0), "offset deltas"),
        (record(0, 0, 3, 1, 0), "less than -1"),
        (record(0, 0, 1, 3, 0), "less than -1"),
        (record(0, 0, 1, 4, 0, value=b"a"), "ends within a value"),
        (record(0, 0, 1, 2, 0, value=b"ab"), "ends within a value"),
        (record(0, 0, 40, 1, 0), "ends within a value"),
        (record(0, 0, 1, 1, 1), "as many headers as it says"),
        (record(0, 0, 1, 1, 2), "as many headers as it says"),
        (record(0, 0, 1, 1, 0, rest=b"\0"), "do not end where it ends"),
        (record(0, 0, 1, 1, 2, rest=b"\x01\x01"), "a header has no name"),
        (record(0, 0, 1, 1, 2, rest=b"\x00\x03"), "a header has no name"),
        (record(0, 0, 1, 1, 2, rest=b"\x00\x02"), "headers of a record do not end"),
        (record(0, 0, 1, 1, 2, rest=b"\x00\x00\x00"), "headers of a record do not end"),
        (record(0x80, 0x80, 0x80, 0x80, 0x80, rest=b"\x80" * 8), "as many headers"),
        (record(0, 0, 0x80, 0x80, 0, value=b"\x80\x80\x80\x80\x01\x01"), "ends within a value"),
    ],
)
def test_a_wrong_number_is_an_error(octets: bytes, why: str) -> None:
    with pytest.raises(RefusedError, match=why) as caught:
        decode_records(octets, 1)
    assert caught.value.code == KafkaError.INVALID_RECORD


def test_headers_of_a_record_may_be_many() -> None:
    many = tuple((f"h{number}", None if number % 3 else b"v") for number in range(1_000))
    parts = [Parts(None, b"a"), Parts(b"k", None, many), Parts(None, b"b", many[:3])]
    octets = batches_by_aiokafka(parts)[HEAD:]
    found = decode_records(octets, 3)
    pairs = [[{"key": name, "value": value} for name, value in each.headers] for each in parts]
    assert listed(found.headers) == [None, *pairs[1:]]
    assert bytes(encode_records(found)) == octets
    for at in range(len(octets) - 30, len(octets)):
        with pytest.raises(RefusedError):
            decode_records(octets[:at], 3)


def test_a_name_that_is_no_text_is_shown_as_one() -> None:
    octets = record(0, 0, 1, 1, 2, rest=b"\x04\xff\xfe\x01")
    assert listed(decode_records(octets, 1).headers) == [[{"key": "\ufffd\ufffd", "value": None}]]


def test_records_of_2_gib_are_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = RecordColumns(binary(b"x" * 93), None, None, np.zeros(1, np.int64))
    assert len(encode_records(columns)) == 102
    monkeypatch.setattr(record_columns, "MAX_INT32", 101)
    with pytest.raises(ValueError, match="less than 2 GiB"):
        encode_records(columns)


def test_more_records_than_are_decoded_at_a_time_are_one_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [
        Parts(b"k" if number > 7 else None, b"%d" % number, (("h", b"x"),) * (number == 3))
        for number in range(10)
    ]
    octets = batches_by_aiokafka(parts)[HEAD:]
    whole = decode_records(octets, 10)
    monkeypatch.setattr(record_columns, "_PART_RECORDS", 3)
    for found, expected in zip(decode_records(octets, 10), whole, strict=True):
        assert found is not None
        assert found.tolist() == expected.tolist()
    bare = batches_by_aiokafka([Parts(None, b"%d" % number) for number in range(10)])[HEAD:]
    assert decode_records(bare, 10)[1:3] == (None, None)


def test_a_million_records_without_a_value_take_bounded_memory() -> None:
    none = pa.nulls(MAX_RECORDS, pa.binary())
    octets = encode_records(RecordColumns(none, None, None, np.zeros(MAX_RECORDS, np.int64)))
    tracemalloc.start()
    try:
        found = decode_records(octets, MAX_RECORDS)
        assert tracemalloc.get_traced_memory()[1] < 150 * MAX_RECORDS
    finally:
        tracemalloc.stop()
    assert found.values.null_count == len(found.values) == MAX_RECORDS
    with pytest.raises(RefusedError, match="1000001 records, of 1000000") as too_many:
        decode_records(octets, MAX_RECORDS + 1)
    assert too_many.value.code == KafkaError.MESSAGE_TOO_LARGE
    with pytest.raises(RefusedError, match="bytes are not 2147483647") as impossible:
        decode_records(octets, 2**31 - 1)
    assert impossible.value.code == KafkaError.INVALID_RECORD


def test_more_headers_than_are_kept_or_than_there_is_memory_for_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = [Parts(None, None, (("", None),) * 8_191)] * 2
    octets = batches_by_aiokafka(most)[HEAD:]
    assert decode_records(octets, 2).headers is not None
    more = batches_by_aiokafka([Parts(None, None, (("", None),) * 8_192)])[HEAD:]
    with pytest.raises(RefusedError, match="too many headers"):
        decode_records(more, 1)
    monkeypatch.setattr(record_columns, "_PART_RECORDS", 1)
    monkeypatch.setattr(record_columns, "MAX_HEADERS", 2 * 8_191 - 1)
    with pytest.raises(RefusedError, match="too many headers"):
        decode_records(octets, 2)


COUNT = 3 * FEW
RANDOM = random.Random(1)
SIZES = {
    "alike": [100] * COUNT,
    "text": [RANDOM.randint(40, 150) for _ in range(COUNT)],
    "large": [RANDOM.randint(500, 900) for _ in range(COUNT)],
    "huge": [20_000 if number % 50 == 0 else 70 for number in range(COUNT)],
    "few": [30, 3, 200],
    "two lengths": [100 if number < 250 else 101 for number in range(COUNT)],
    "short": [number % 3 for number in range(COUNT)],
}


def records(sizes: list[int], filled: str) -> bytes:
    octet = {
        "text": lambda size: b"x" * size,
        "zeros": bytes,
        "random": random.Random(7).randbytes,
    }[filled]
    headers = (("h", b"\xff"),) if filled == "random" and len(sizes) % 2 else ()
    parts = [
        Parts(None, octet(size), headers, START_MS + number // 5)
        for number, size in enumerate(sizes)
    ]
    return batches_by_aiokafka(parts)[HEAD:]


def walked(data: bytes, count: int) -> list[tuple[int, int]] | None:
    """Find record boundaries byte by byte."""
    found, at = [], 0
    for _ in range(count):
        number = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            octet = data[at]
            number |= (octet & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if octet < 0x80:
                break
        if number & 1:
            return None
        found.append((at, at + (number >> 1)))
        at = found[-1][1]
    return found if at == len(data) else None


def found(data: bytes, count: int) -> list[tuple[int, int]] | None:
    boundaries = boundaries_of(np.frombuffer(data, np.uint8), count)
    return boundaries and list(zip(*(each.tolist() for each in boundaries), strict=True))


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("filled", ["text", "zeros", "random"])
def test_all_records_are_found(kind: str, filled: str) -> None:
    data, count = records(SIZES[kind], filled), len(SIZES[kind])
    assert found(data, count) == walked(data, count) is not None
    assert found(data, count - 1) is found(data, count + 1) is found(data, 1 << 31) is None
    assert found(data[:-1], count) is found(data + b"\0", count) is None


@pytest.mark.parametrize("kind", ["alike", "text", "two lengths", "large"])
@pytest.mark.parametrize("filled", ["text", "random"])
def test_most_batches_are_not_followed_record_by_record(
    monkeypatch: pytest.MonkeyPatch, kind: str, filled: str
) -> None:
    data = records(SIZES[kind], filled)
    monkeypatch.setattr(record_columns, "_one_by_one", lambda *_: None)
    assert (found(data, COUNT) is None) == (kind == "large")


@pytest.mark.parametrize("kind", ["alike", "text"])
@given(at=st.integers(0, 10**6), octet=st.integers(0, 255))
def test_one_wrong_octet_is_found_or_is_no_length(kind: str, at: int, octet: int) -> None:
    data = bytearray(records(SIZES[kind][: FEW + 20], "text"))
    data[at % len(data)] = octet
    assert found(bytes(data), FEW + 20) == walked(bytes(data), FEW + 20)


@given(
    st.binary(max_size=60) | st.lists(st.sampled_from([0, 1, 12, 14, 128]), max_size=60).map(bytes)
)
def test_any_octets_are_records_or_none(data: bytes) -> None:
    for count in (1, 2, 3):
        expected = walked(data, count)
        if expected is not None and count * 7 > len(data):
            expected = None
        assert found(data, count) == expected


@given(st.lists(st.sampled_from([0, 1, 12, 14, 128, 200]), min_size=1, max_size=12).map(bytes))
def test_any_octets_are_many_records_or_none(data: bytes) -> None:
    repeated = data * (8 * FEW // len(data))
    assert found(repeated, FEW) == walked(repeated, FEW)


@pytest.mark.parametrize("kind", sorted({*SIZES} - {"huge"}))  # three bytes for a length
def test_batches_that_are_alike_are_found_from_the_first_one(kind: str) -> None:
    data, count = records(SIZES[kind], "random"), len(SIZES[kind])
    boundaries = boundaries_of_each(np.frombuffer(data * 3, np.uint8), len(data), count)
    assert boundaries is not None
    starts_and_ends = list(zip(*(each.tolist() for each in boundaries), strict=True))
    assert starts_and_ends == walked(data * 3, 3 * count)


@given(at=st.integers(0, 10**6), octet=st.integers(0, 255))
def test_batches_whose_lengths_differ_are_not_alike(at: int, octet: int) -> None:
    data, count = records(SIZES["two lengths"], "text"), COUNT
    octets = bytearray(data * 2)
    octets[at % len(octets)] = octet
    boundaries = boundaries_of_each(np.frombuffer(octets, np.uint8), len(data), count)
    each = walked(bytes(octets[: len(data)]), count), walked(bytes(octets[len(data) :]), count)
    if boundaries is None:
        assert each[0] != each[1]
    else:
        starts_and_ends = list(zip(*(each.tolist() for each in boundaries), strict=True))
        assert starts_and_ends == walked(bytes(octets), 2 * count)


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


# -- decoded records, as a store takes them --------------------------------------------------------


def batch(stamps: list[int], headers: pa.Array | None = None) -> KafkaBatch:
    values = binary(*[b"v"] * len(stamps))
    stamps_ms = np.array(stamps, np.int64)
    return KafkaBatch(BatchHead(2, 0), stamps_ms, values, None, headers, stamps_ms)


def test_timestamps_are_runs_of_microseconds() -> None:
    times = times_of(batch([5, 5, 7, -1, 7]).timestamps_ms)
    assert times is not None
    assert times.tolist() == [[2, 5_000], [1, 7_000], [1, UNKNOWN_US], [1, 7_000]]
    assert times_of(batch([-1, -1]).timestamps_ms) is None
    assert times_of(batch([-1]).timestamps_ms) is None
    assert milliseconds(None, 2).tolist() == [NO_TIMESTAMP] * 2


@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_timestamps_come_back_unless_they_are_too_large(stamps: list[int]) -> None:
    most = 2**63 // 1000 - 1
    expected = [max(-most, min(stamp, most)) for stamp in stamps]
    assert milliseconds(times_of(batch(stamps).timestamps_ms), len(stamps)).tolist() == expected


def test_more_headers_than_an_envelope_holds_are_an_error() -> None:
    many = [("name", b"value")] * 8_192
    headers = pa.array([many], HEADERS_TYPE)
    with pytest.raises(RefusedError, match="too many headers") as caught:
        batch([1], headers).contents()
    assert caught.value.code == KafkaError.MESSAGE_TOO_LARGE
    assert len(batch([1], pa.array([many[:8_191]], HEADERS_TYPE)).contents()) == 1


def test_a_refusal_keeps_its_facts() -> None:
    made = RefusedError(KafkaError.CORRUPT_MESSAGE, "the CRC is wrong")
    for error in (made, pickle.loads(pickle.dumps(made))):
        assert str(error) == "the CRC is wrong"
        assert (error.code, error.why) == (KafkaError.CORRUPT_MESSAGE, "the CRC is wrong")
