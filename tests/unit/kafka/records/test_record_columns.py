"""The records of a batch by column, where each number may be wrong."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.kafka.records import record_columns
from dafka_core.kafka.records.errors import INVALID_RECORD, MESSAGE_TOO_LARGE, CorruptRecordsError
from dafka_core.kafka.records.record_columns import (
    MAX_RECORDS,
    RecordColumns,
    decode_records,
    encode_records,
)
from tests.unit.kafka.records.batches import Parts, binary, by_aiokafka

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


def test_a_record_octet_by_octet() -> None:
    octets = record(3, 0, 2, 6, 4, key=b"k", value=b"abc", rest=b"\x02h\x04xy\x02i\x01")
    found = decode_records(octets, 1)
    assert found.values.to_pylist() == [b"abc"]
    assert listed(found.keys) == [b"k"]
    assert listed(found.headers) == [[{"key": "h", "value": b"xy"}, {"key": "i", "value": None}]]
    assert found.deltas.tolist() == [-2]
    assert bytes(encode_records(found)) == octets


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
    with pytest.raises(CorruptRecordsError, match=why) as caught:
        decode_records(octets, 1)
    assert caught.value.error == INVALID_RECORD


def test_headers_of_a_record_may_be_many() -> None:
    many = tuple((f"h{number}", None if number % 3 else b"v") for number in range(1_000))
    parts = [Parts(None, b"a"), Parts(b"k", None, many), Parts(None, b"b", many[:3])]
    octets = by_aiokafka(parts)[HEAD:]
    found = decode_records(octets, 3)
    pairs = [[{"key": name, "value": value} for name, value in each.headers] for each in parts]
    assert listed(found.headers) == [None, *pairs[1:]]
    assert bytes(encode_records(found)) == octets
    for at in range(len(octets) - 30, len(octets)):
        with pytest.raises(CorruptRecordsError):
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
    octets = by_aiokafka(parts)[HEAD:]
    whole = decode_records(octets, 10)
    monkeypatch.setattr(record_columns, "_PART_RECORDS", 3)
    for found, expected in zip(decode_records(octets, 10), whole, strict=True):
        assert found is not None
        assert found.tolist() == expected.tolist()
    bare = by_aiokafka([Parts(None, b"%d" % number) for number in range(10)])[HEAD:]
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
    with pytest.raises(CorruptRecordsError, match="1000001 records, of 1000000") as too_many:
        decode_records(octets, MAX_RECORDS + 1)
    assert too_many.value.error == MESSAGE_TOO_LARGE
    with pytest.raises(CorruptRecordsError, match="bytes are not 2147483647") as impossible:
        decode_records(octets, 2**31 - 1)
    assert impossible.value.error == INVALID_RECORD


def test_more_headers_than_are_kept_or_than_there_is_memory_for_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = [Parts(None, None, (("", None),) * 8_191)] * 2
    octets = by_aiokafka(most)[HEAD:]
    assert decode_records(octets, 2).headers is not None
    more = by_aiokafka([Parts(None, None, (("", None),) * 8_192)])[HEAD:]
    with pytest.raises(CorruptRecordsError, match="too many headers"):
        decode_records(more, 1)
    monkeypatch.setattr(record_columns, "_PART_RECORDS", 1)
    monkeypatch.setattr(record_columns, "MAX_HEADERS", 2 * 8_191 - 1)
    with pytest.raises(CorruptRecordsError, match="too many headers"):
        decode_records(octets, 2)
