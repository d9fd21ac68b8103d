"""Codecs: what other implementations compress is read, and bounded."""

import gzip
import os
import tracemalloc
from collections.abc import Callable

import aiokafka.codec as aiokafka
import cramjam
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python

from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.records.compression import MAX_GZIP_MEMBERS, Codec, codec_of, decompressed
from tests.unit.kafka.records.batches import compressed

CODECS = [codec for codec in Codec if codec]
TEXT = b"".join(b"record %d of some; " % number for number in range(8_000))


def _independent_blocks(octets: bytes) -> bytes:
    """Compress by LZ4 as Java's clients do."""
    lz4 = cramjam.lz4.Compressor(2, block_linked=False)
    lz4.compress(octets)
    return bytes(lz4.finish())


OTHERS: list[tuple[Codec, Callable[[bytes], bytes]]] = [
    (Codec.GZIP, aiokafka.gzip_encode),
    (Codec.GZIP, kafka_python.gzip_encode),
    (Codec.SNAPPY, aiokafka.snappy_encode),
    (Codec.SNAPPY, lambda each: bytes(cramjam.snappy.compress_raw(each))),
    (Codec.LZ4, aiokafka.lz4_encode),
    (Codec.LZ4, _independent_blocks),
    (Codec.ZSTD, aiokafka.zstd_encode),
    (Codec.ZSTD, kafka_python.zstd_encode),
]


def error_of(codec: Codec, octets: bytes) -> int | None:
    """Return the error for these bytes, or None."""
    try:
        assert len(decompressed(codec, octets, 1_000)) <= 1_000
    except RefusedError as error:
        return error.code
    return None


@pytest.mark.parametrize(("codec", "encode"), OTHERS)
def test_what_other_implementations_write_is_read(
    codec: Codec, encode: Callable[[bytes], bytes]
) -> None:
    for octets in (b"x", TEXT, os.urandom(100_000)):
        assert bytes(decompressed(codec, bytes(encode(octets)))) == octets


@pytest.mark.parametrize("codec", Codec)
@given(octets=st.binary(max_size=2_000))
def test_what_is_compressed_comes_back(codec: Codec, octets: bytes) -> None:
    assert bytes(decompressed(codec, memoryview(compressed(codec, octets)))) == octets


@pytest.mark.parametrize("codec", CODECS)
def test_as_much_as_there_may_be_and_no_octet_more(codec: Codec) -> None:
    packed = compressed(codec, TEXT)
    assert bytes(decompressed(codec, packed, len(TEXT))) == TEXT
    for max_bytes in (len(TEXT) - 1, 100, 1):
        with pytest.raises(RefusedError, match=f"more than {max_bytes} bytes") as caught:
            decompressed(codec, packed, max_bytes)
        assert caught.value.code == KafkaError.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_ends_in_an_error_and_not_in_memory(codec: Codec) -> None:
    bomb = bytes(compressed(codec, bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="more than 1000000 bytes"):
            decompressed(codec, bomb, 1_000_000)
        # Only the compressed bytes of a bomb stay in memory.
        assert tracemalloc.get_traced_memory()[1] < 4_000_000 + 2 * len(bomb)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_an_error(codec: Codec) -> None:
    packed = bytes(compressed(codec, TEXT[:300]))
    found = [error_of(codec, packed[:size]) for size in range(1, len(packed))]
    if codec == Codec.SNAPPY:  # its blocks may end after any of them, or before the first
        assert found.pop(16 - 1) is None
    assert set(found) == {KafkaError.INVALID_RECORD}


@pytest.mark.parametrize("codec", CODECS)
@given(octets=st.binary(max_size=80), at=st.integers(0, 200), flip=st.integers(1, 255))
def test_other_octets_end_in_the_named_error_or_in_octets(
    codec: Codec, octets: bytes, at: int, flip: int
) -> None:
    packed = bytearray(compressed(codec, TEXT[:200]))
    packed[at % len(packed)] ^= flip
    assert error_of(codec, octets) in (None, KafkaError.INVALID_RECORD)
    # A changed length may make it valid, and larger than allowed.
    assert error_of(codec, bytes(packed)) in (
        None,
        KafkaError.INVALID_RECORD,
        KafkaError.MESSAGE_TOO_LARGE,
    )


def test_a_block_of_snappy_that_is_too_large_or_has_an_impossible_length() -> None:
    assert (
        error_of(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)))
        == KafkaError.MESSAGE_TOO_LARGE
    )
    claims_4_gib = b"\xff\xff\xff\xff\x0f\0a"
    for head in (b"", b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + b"\0\0\0\x07"):
        assert error_of(Codec.SNAPPY, head + claims_4_gib) == KafkaError.INVALID_RECORD


def test_streams_of_gzip_may_follow_each_other() -> None:
    packed = gzip.compress(b"one, ") + gzip.compress(b"two")
    assert decompressed(Codec.GZIP, packed) == b"one, two"
    with pytest.raises(RefusedError, match="more than 7 bytes"):
        decompressed(Codec.GZIP, packed, 7)


def test_a_batch_of_many_gzip_members_is_refused() -> None:
    empty = gzip.compress(b"")
    assert decompressed(Codec.GZIP, empty * MAX_GZIP_MEMBERS) == b""
    with pytest.raises(RefusedError, match="more than 1000 members"):
        decompressed(Codec.GZIP, memoryview(empty * ((3 << 20) // len(empty))))


def test_lz4_of_kafka_before_its_0_10_has_a_checksum_of_its_own() -> None:
    packed = aiokafka.lz4_encode(TEXT)
    old = bytearray(packed)
    end = 14 if old[4] & 8 else 6  # a frame may contain its size
    old[end] = xxhash.xxh32_intdigest(packed[:end]) >> 8 & 0xFF
    assert bytes(decompressed(Codec.LZ4, old, broken_lz4=True)) == TEXT
    assert bytes(decompressed(Codec.LZ4, packed, broken_lz4=True)) == TEXT
    with pytest.raises(RefusedError, match="not compressed with lz4"):
        decompressed(Codec.LZ4, old)
    for wrong in (b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x64\x40", b"other octets"):
        with pytest.raises(RefusedError, match="not compressed with lz4"):
            decompressed(Codec.LZ4, wrong, broken_lz4=True)


def test_a_codec_that_is_not_there_is_refused() -> None:
    assert [codec_of(number) for number in range(5)] == list(Codec)
    assert codec_of(0xFFF8) == Codec.NONE
    for attributes, largest in ((5, Codec.ZSTD), (7, Codec.ZSTD), (4, Codec.LZ4)):
        with pytest.raises(RefusedError, match=r"compression [457] is unknown") as caught:
            codec_of(attributes, largest)
        assert caught.value.code == KafkaError.UNSUPPORTED_COMPRESSION_TYPE
