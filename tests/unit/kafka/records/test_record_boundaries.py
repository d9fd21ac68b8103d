"""Where records lie: as found one by one, whichever way is taken; or nowhere."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.kafka.records import record_boundaries
from dafka_core.kafka.records.record_boundaries import boundaries_of, boundaries_of_each
from dafka_core.values import FEW
from tests.unit.kafka.records.batches import START_MS, Parts, by_aiokafka

HEAD = 61
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
    return by_aiokafka(parts)[HEAD:]


def walked(data: bytes, count: int) -> list[tuple[int, int]] | None:
    """Where records lie, octet by octet."""
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
    monkeypatch.setattr(record_boundaries, "_one_by_one", lambda *_: None)
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


@pytest.mark.parametrize("kind", sorted({*SIZES} - {"huge"}))  # three octets for a length
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
