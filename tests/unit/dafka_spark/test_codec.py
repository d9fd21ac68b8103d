"""Bad values among good ones."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_spark.formats.codec import StringCodec, apart, joined, needed


def numbers(values: pa.Array) -> pa.Array:
    return values.cast(pa.utf8()).cast(pa.int64())


@given(st.lists(st.none() | st.integers(0, 9) | st.just("bad"), max_size=30))
def test_each_bad_value_is_found(wanted: list[int | str | None]) -> None:
    values = pa.array([None if each is None else str(each).encode() for each in wanted])
    parts = list(apart(values.cast(pa.binary()), numbers))
    column = joined(parts, pa.int64()) if parts else pa.array([], pa.int64())
    assert column.to_pylist() == [None if each == "bad" else each for each in wanted]
    bad = [part.start for part in parts if part.why]
    assert bad == [row for row, each in enumerate(wanted) if each == "bad"]


def test_good_values_are_decoded_at_once() -> None:
    (part,) = apart(pa.array([b"1"] * 1000), numbers)
    assert (part.start, len(part.column), part.why) == (0, 1000, "")


def test_a_row_too_many_is_bad() -> None:
    parts = list(apart(pa.array([b"1", b"2"]), lambda values: pa.array([1] * (len(values) + 1))))
    assert [part.why for part in parts] == ["it is more than one value"] * 2


def test_text() -> None:
    codec = StringCodec()
    assert codec.decode(pa.array(["é".encode(), None])).to_pylist() == ["é", None]
    with pytest.raises(ValueError, match="it is not UTF-8"):
        codec.decode(pa.array([b"\xff"]))


def test_a_package_that_is_there_is_given() -> None:
    assert needed("json", extra="x") is json


def test_one_that_is_not_is_named_with_its_extra() -> None:
    why = r"needs not_there on the driver and the executors: pip install 'dafka-spark\[odd\]'"
    with pytest.raises(ImportError, match=why):
        needed("not_there.part", extra="odd")
