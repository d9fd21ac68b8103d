"""The records of a batch by column, where each number may be wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.kafka.records import record_columns
from dafka_core.kafka.records.errors import INVALID_RECORD, CorruptRecordsError
from dafka_core.kafka.records.record_columns import RecordColumns, decode_records, encode_records
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
