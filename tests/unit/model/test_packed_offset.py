"""Offsets of many partitions as one text."""

from __future__ import annotations

import base64
import contextlib
import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.epochs import EpochId
from dafka_core.model.packed_offset import pack, unpack
from dafka_core.model.records import TopicPartition

A, ODD = TopicPartition("t", "0" * 31 + "7"), TopicPartition("ü", "odd \udcff")

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9) | st.just("\udcff")
addresses = st.binary(min_size=16, max_size=16).map(lambda octets: octets.hex().upper())
tps = st.builds(TopicPartition, names, names | addresses)
offsets = st.integers(0, 2**63 - 1)
longs = st.integers(0, 2**64 - 1)
lives = st.builds(EpochId, longs, longs, longs) | st.just(EpochId(1, 7, 1))


@given(st.dictionaries(tps, offsets), st.dictionaries(tps, offsets), st.dictionaries(tps, lives))
def test_unpack_is_the_inverse(
    positions: dict[TopicPartition, int],
    start: dict[TopicPartition, int],
    lived: dict[TopicPartition, EpochId],
) -> None:
    text = pack(positions, start, lived)
    assert unpack(text) == (positions, start, lived)
    backwards = dict(reversed(positions.items()))
    assert pack(backwards, start, dict(reversed(lived.items()))) == text  # Spark compares texts


def test_a_text_of_before_is_read() -> None:
    text = "c${NmU|?Vb;u1zEg9(Ta?*Xx}0CrX&k)M*H@Shb`!hzvGDn#Rgjb?@_{tpFAP(A?H#~hI"
    positions, start, lived = unpack(text)
    assert positions == {A: 5, ODD: 2**62}
    assert start == {A: 0}
    assert lived == {ODD: EpochId(3, 2**64 - 1, 2)}


@pytest.mark.parametrize(("with_lives", "most_chars"), [(False, 22), (True, 33)])
def test_what_a_partition_takes(with_lives: bool, most_chars: int) -> None:
    """The random octets of its name, and of its life, and hardly more."""
    many = {TopicPartition("t", uuid.uuid4().hex.upper()): 10 + n % 7 for n in range(10_000)}
    lived = {tp: EpochId(1, uuid.uuid4().int % 2**64, 1) for tp in many} if with_lives else {}
    assert len(pack(many, {}, lived)) < most_chars * len(many)
    one = dict.fromkeys(many, EpochId(1, 7, 1))  # what a store has taken from clients
    assert len(pack(many, dict.fromkeys(many, 0), one)) < 22 * len(many)


def packed(octets: bytes) -> str:
    return base64.b85encode(zlib.compress(octets)).decode()


def octets_of(text: str) -> bytes:
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
        packed(octets_of(pack({A: 5}, {}, {})) + b"x"),
        packed(octets_of(pack({A: 5}, {}, {A: EpochId(1, 2, 3)}))[:-28] + bytes(4)),
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(text)


@given(st.binary())
def test_anything_is_unpacked_or_refused(octets: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpack(packed(octets))


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack({A: 5}, {}, {A: EpochId(2**64, 0, 0)})
