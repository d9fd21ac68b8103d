"""Offsets of many partitions as one text."""

from __future__ import annotations

import base64
import contextlib
import math
import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.epochs import EpochId
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import pack, unpack

A = TopicPartition("t", "0" * 31 + "7")

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9) | st.just("\udcff")
addresses = st.binary(min_size=16, max_size=16).map(lambda packed: packed.hex().upper())
tps = st.builds(TopicPartition, names, names | addresses)
offsets = st.integers(0, 2**63 - 1)
longs = st.integers(0, 2**64 - 1)
lives = st.builds(EpochId, longs, longs, longs) | st.just(EpochId(1, 7, 1))


@given(st.dictionaries(tps, offsets), st.dictionaries(tps, offsets), st.dictionaries(tps, lives))
def test_packed_offsets_are_unpacked(
    positions: dict[TopicPartition, int],
    start: dict[TopicPartition, int],
    lived: dict[TopicPartition, EpochId],
) -> None:
    text = pack(positions, start, lived)
    assert unpack(text) == (positions, start, lived)
    backwards = dict(reversed(positions.items()))
    assert pack(backwards, start, dict(reversed(lived.items()))) == text  # Spark compares texts


COUNT = 10_000
LEAST_CHARS = (128 * COUNT - math.lgamma(COUNT + 1) / math.log(2)) / math.log2(93)
"""No text of JSON's 93 plain ASCII characters can hold that many random names, in any order."""


def test_random_names_take_little_more_than_their_entropy() -> None:
    random = {TopicPartition("t", uuid.uuid4().hex.upper()): 10 for _ in range(COUNT)}
    assert 177_000 < LEAST_CHARS < len(pack(random, {}, {})) < 1.03 * LEAST_CHARS
    one_life = dict.fromkeys(random, EpochId(1, 7, 1))
    assert len(pack(random, dict.fromkeys(random, 0), one_life)) < 1.03 * LEAST_CHARS
    own_lives = {tp: EpochId(1, uuid.uuid4().int % 2**64, 1) for tp in random}
    assert len(pack(random, {}, own_lives)) < 1.03 * LEAST_CHARS + 10.5 * COUNT


def test_regular_names_and_positions_take_few_characters() -> None:
    regular = {TopicPartition("t", f"{n:032X}"): 10 + n % 7 for n in range(COUNT)}
    assert len(pack(regular, {}, {})) < 1_000
    irregular = {tp: hash(tp) % 1_000 for tp in regular}
    assert len(pack(irregular, {}, {})) < 2.1 * COUNT


def packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content)).decode()


def content_of(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "\n",
        "ü",
        packed(b""),
        packed(b"\1"),
        packed(b"\xff\xff\xff\xff"),
        packed(bytes(8) + b"x"),
        pack({A: 5}, {}, {A: EpochId(1, 2, 3)})[:-5],
        packed(content_of(pack({A: 5}, {}, {})) + b"x"),
        packed(content_of(pack({A: 5}, {}, {A: EpochId(1, 2, 3)}))[:-28] + bytes(4)),
    ],
)
def test_an_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the packed offset is damaged"):
        unpack(text)


@given(st.binary())
def test_any_bytes_are_unpacked_or_refused(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpack(packed(content))


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack({A: 5}, {}, {A: EpochId(2**64, 0, 0)})
    with pytest.raises(ValueError, match="does not end"):
        unpack(pack({A: 5}, {}, {}), max_bytes=10)
