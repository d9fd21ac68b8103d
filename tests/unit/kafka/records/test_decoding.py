"""Consecutive Kafka batches of any version, with a possibly truncated last one."""

from __future__ import annotations

import pytest

from dafka_core.model.records import RecordBatch
from dafka_kafka.errors import CORRUPT_MESSAGE, CorruptRecordsError
from dafka_kafka.records.compression import Codec
from dafka_kafka.records.message_set import encode_message_set
from dafka_kafka.records.record_batch import decode_batches, encode_record_batches
from tests.unit.kafka.records.batches import Parts, as_dafka, by_aiokafka

BATCHES: list[tuple[int, bytes]] = [
    (2, by_aiokafka([Parts(None, b"a"), Parts(None, b"b")])),
    (0, encode_message_set(as_dafka([Parts(None, b"c"), Parts(None, b"d")]), 0)),
    (1, encode_message_set(as_dafka([Parts(None, b"e")]), 1)),
    (2, by_aiokafka([Parts(None, b"f")], codec=1)),
    (2, next(encode_record_batches(as_dafka([Parts(None, b"g")])))),
    (1, encode_message_set(as_dafka([Parts(None, b"h"), Parts(None, b"i")]), 1)),
]
ALL = b"".join(octets for _, octets in BATCHES)


def values_of(octets: bytes) -> list[bytes]:
    return [value for batch in decode_batches(octets) for value in batch.values.to_pylist()]


def test_batches_of_all_versions_follow_each_other() -> None:
    assert [batch.magic for batch in decode_batches(ALL)] == [magic for magic, _ in BATCHES]
    assert b"".join(values_of(ALL)) == b"abcdefghi"
    assert list(decode_batches(b"")) == []


def test_a_truncated_last_batch_is_ignored() -> None:
    for stop in range(len(ALL)):
        assert b"abcdefghi".startswith(b"".join(values_of(ALL[:stop])))
    assert values_of(ALL[:-1])[-1] == b"h"


def test_a_batch_is_decoded_when_it_is_asked_for() -> None:
    batches = decode_batches(BATCHES[0][1] + b"\xff" * 100)
    assert next(batches).values.to_pylist() == [b"a", b"b"]
    with pytest.raises(CorruptRecordsError, match="no batch has -1 bytes") as caught:
        next(batches)
    assert caught.value.error == CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 13, -1, -(2**31)])
def test_a_size_that_is_none_is_an_error(size: int) -> None:
    head = bytes(8) + size.to_bytes(4, "big", signed=True)
    for octets in (head, head + bytes(60)):
        with pytest.raises(CorruptRecordsError, match=f"no batch has {size} bytes"):
            values_of(octets)


@pytest.mark.parametrize("magic", [3, 255])
def test_a_magic_that_is_none_is_an_error(magic: int) -> None:
    octets = bytearray(BATCHES[0][1])
    octets[16] = magic
    with pytest.raises(CorruptRecordsError, match="magic"):
        values_of(bytes(octets))


def test_what_is_decompressed_is_bounded() -> None:
    whole = RecordBatch.of(as_dafka([Parts(None, b"")]).tp, 0, [bytes(1_000)])
    (octets,) = encode_record_batches(whole, Codec.GZIP)
    with pytest.raises(CorruptRecordsError, match="more than 1000 bytes"):
        list(decode_batches(octets, 1_000))
    assert len(list(decode_batches(octets, 1_010))) == 1
