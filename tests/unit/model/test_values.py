"""Values are a list of bytes, or columns."""

import copy
import pickle
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.values import FEW, MANY, RowDigest, Values

LISTS = st.lists(st.binary(max_size=9) | st.just(b""), max_size=12)
INDICES = st.none() | st.integers(-15, 15)
SLICES = st.builds(slice, INDICES, INDICES, st.sampled_from([None, 1, 2, -1, -3]))


def from_columns(values: list[bytes], dtype: npt.DTypeLike = np.int64) -> Values:
    """From a part of a buffer, as slices have it: neither its begin nor its end."""
    ends = np.cumsum([3, *map(len, values)]).astype(dtype)
    return Values.from_columns(ends, b"".join([b"xyz", *values, b"zyx"]))


def from_arrow(values: list[bytes], type_: pa.DataType, before: int, after: int) -> Values:
    """From a slice of an array, which shares its buffers."""
    padded = [b"xyz"] * before + values + [b""] * after
    if type_ in (pa.string(), pa.large_string()):
        array = pa.array([v.decode("latin-1") for v in padded], type_)
    else:
        array = pa.array(padded, type_)
    return Values.from_arrow(array.slice(before, len(values)))


MAKERS: dict[str, Callable[[list[bytes]], Values]] = {
    "list": lambda values: Values.of(list(values)),
    "iterator": lambda values: Values.of(iter(values)),
    "int64": from_columns,
    "int32": lambda values: from_columns(values, np.int32),
    "uint32": lambda values: from_columns(values, np.uint32),
    "big endian": lambda values: from_columns(values, ">i8"),
    "binary": lambda values: from_arrow(values, pa.binary(), 0, 0),
    "sliced binary": lambda values: from_arrow(values, pa.binary(), 2, 1),
    "sliced large binary": lambda values: from_arrow(values, pa.large_binary(), 2, 1),
    "slice": lambda values: from_columns([b"abc", *values, b"de"])[1:-1],
    "slice of list": lambda values: Values.of([b"abc", *values, b"de"])[1:-1],
}
every_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)


def assert_is(made: Values, values: list[bytes]) -> None:
    """Compare all forms, in any order of first use."""
    assert len(made) == len(values)
    assert made.size_bytes == sum(map(len, values))
    ends, data = made.columns()
    assert ends.dtype == np.int64
    assert ends.tolist() == np.cumsum([0, *map(len, values)]).tolist()
    assert bytes(data) == b"".join(values)
    assert made.to_list() == values
    assert {type(value) for value in made.to_list()} <= {bytes}
    array = made.to_arrow()
    assert array.type == pa.binary()
    array.validate(full=True)
    assert array.to_pylist() == values


@every_maker
@settings(max_examples=60, deadline=None)
@given(values=LISTS)
def test_every_form_converts_to_every_other(
    maker: Callable[[list[bytes]], Values], values: list[bytes]
) -> None:
    assert_is(maker(values), values)
    # The list first, then the columns; and the other way round.
    made = maker(values)
    assert made.to_list() == values
    assert_is(made, values)
    assert_is(Values.from_arrow(maker(values).to_arrow()), values)
    assert_is(Values.from_columns(*maker(values).columns()), values)
    assert_is(Values.of(maker(values).to_list()), values)


@every_maker
@settings(max_examples=60, deadline=None)
@given(values=LISTS, part=SLICES, again=SLICES, index=st.integers(-13, 13))
def test_values_behave_as_a_list(
    maker: Callable[[list[bytes]], Values],
    values: list[bytes],
    part: slice,
    again: slice,
    index: int,
) -> None:
    made = maker(values)
    assert_is(made[part], values[part])
    assert_is(made[part][again], values[part][again])
    assert isinstance(made, Sequence)
    if -len(values) <= index < len(values):
        assert made[index] == values[index]
    else:
        with pytest.raises(IndexError):
            made[index]
    assert list(made) == values
    assert list(reversed(made)) == values[::-1]
    assert (b"" in made) == (b"" in values)
    assert made.count(b"") == values.count(b"")
    assert bool(made) == bool(values)


@every_maker
@given(values=LISTS, other=LISTS)
@settings(max_examples=40, deadline=None)
def test_equality(
    maker: Callable[[list[bytes]], Values], values: list[bytes], other: list[bytes]
) -> None:
    made = maker(values)
    assert made == values
    assert made == tuple(values)
    assert made == Values.of(list(values))
    assert (made == other) == (values == other)
    assert (made != maker(other)) == (values != other)
    assert made != "".join(map(str, values))
    assert made != 5


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1)])
def test_strings_become_bytes(type_: pa.DataType, before: int, after: int) -> None:
    texts = ["", "é", "日本", "a"]
    array = pa.array(["xyz"] * before + texts + [""] * after, type_).slice(before, len(texts))
    assert_is(Values.from_arrow(array), [text.encode() for text in texts])


@pytest.mark.parametrize(
    "type_", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str
)
def test_empty_arrays(type_: pa.DataType) -> None:
    assert_is(Values.from_arrow(pa.array([], type_)), [])
    assert_is(Values.from_arrow(pa.array([b"ab", b"c"], pa.binary()).cast(type_).slice(1, 0)), [])
    assert_is(Values.from_arrow(pa.array([b"", b""], pa.binary()).cast(type_)), [b"", b""])
    # An array may come without a buffer for values of no length.
    assert_is(Values.from_arrow(pa.nulls(2, pa.binary()).fill_null(b"").cast(type_)), [b"", b""])


@pytest.mark.parametrize(
    "made",
    [Values(), Values.of([]), from_columns([]), Values.of([b"a"])[1:], from_columns([b"a"])[5:]],
)
def test_empty_values(made: Values) -> None:
    assert_is(made, [])
    assert not made


def test_values_of_values_are_unchanged() -> None:
    made = Values.of([b"a"])
    assert Values.of(made) is made


@every_maker
def test_pickling_and_copying(maker: Callable[[list[bytes]], Values]) -> None:
    values = [b"a", b"", b"ccc"]
    for again in (pickle.loads(pickle.dumps(maker(values))), copy.deepcopy(maker(values))):
        assert type(again) is Values
        assert_is(again, values)


@every_maker
def test_repr_evaluates_to_equal_values(maker: Callable[[list[bytes]], Values]) -> None:
    made = maker([b"a", b"\0'"])
    assert repr(made) == "Values.of([b'a', b\"\\x00'\"])"


def test_values_are_not_hashable_as_lists_are_not() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Values.of([b"a"]))


def test_columns_and_slices_are_not_copied() -> None:
    data = bytes(8 << 20)
    ends = np.arange(0, len(data) + 1, 8 << 10)
    array = pa.Array.from_buffers(
        pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    tracemalloc.start()
    try:
        made = Values.from_columns(ends, data)
        assert made[1:].size_bytes + made[5:900].to_arrow().nbytes > 8 << 20
        assert Values.from_arrow(array)[3:].size_bytes > 7 << 20
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_lists_leave_no_format_in_a_cache() -> None:
    random = np.random.default_rng(1)
    ends = [np.cumsum([0, *random.integers(0, 9, 20_000)]) for _ in range(20)]
    tracemalloc.start()
    try:
        for each in ends:
            Values.from_columns(each, bytes(int(each[-1]))).to_list()
        left_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # Each has a format of its own, and struct remembers a hundred of those it is given by text.
    assert left_bytes < 1 << 20


def test_two_gibibytes_are_refused_as_an_array() -> None:
    made = Values.from_columns(np.array([0, 1 << 31]), b"")
    with pytest.raises(OverflowError, match="less than 2 GiB"):
        made.to_arrow()


def test_the_largest_value_is_found_in_both_forms() -> None:
    listed = Values.of([b"", b"abc", b"de"])
    ends, data = Values.of([b"", b"abc", b"de"]).columns()
    assert listed.largest_bytes == Values.from_columns(ends, data).largest_bytes == 3
    assert Values().largest_bytes == Values.from_columns(ends[:1], b"").largest_bytes == 0


def test_values_from_arrow_can_be_joined_with_others() -> None:
    values = Values.from_arrow(pa.array([b"one", b"two"]))
    _, data = values.columns()
    assert data.format == "B"
    joined = bytearray(6)
    joined[:] = data
    assert joined == b"onetwo"


@pytest.mark.parametrize("made", [MAKERS[name] for name in ("list", "int64", "sliced binary")])
def test_fitting(made: Callable[[list[bytes]], Values]) -> None:
    values = made([b"aaa", b"", b"bb", b"c"])
    assert [values.fitting(0, size) for size in (0, 2, 3, 4, 5, 6, 99)] == [0, 0, 2, 2, 3, 4, 4]
    assert [values.fitting(1, size) for size in (0, 1, 2, 3)] == [1, 1, 2, 3]
    assert [values[1:3].fitting(0, size) for size in (0, 1, 2, 3)] == [1, 1, 2, 2]


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.tuples(st.sampled_from(list(MAKERS)), LISTS), min_size=1, max_size=5))
def test_concatenation(parts: list[tuple[str, list[bytes]]]) -> None:
    made = Values.concat([MAKERS[name](values) for name, values in parts])
    assert_is(made, [value for _, values in parts for value in values])


def test_a_single_part_is_not_copied() -> None:
    part = from_columns([b"a", b"b"])
    assert Values.concat([part]) is part


@every_maker
@settings(max_examples=60, deadline=None)
@given(values=LISTS, prefix=st.binary(min_size=1, max_size=3), at=st.integers(0, 12))
def test_starting_with(
    maker: Callable[[list[bytes]], Values], values: list[bytes], prefix: bytes, at: int
) -> None:
    values.insert(at, prefix + b"and more")
    for some in (values, values * FEW, values * (MANY // len(values) + 1)):
        found = maker(some).starting_with(prefix).tolist()
        assert found == [index for index, value in enumerate(some) if value.startswith(prefix)]


ROWS = st.lists(st.binary(max_size=3), max_size=8)


def digest_of(*blocks: Sequence[bytes]) -> RowDigest:
    digest = RowDigest()
    for block in blocks:
        digest.add(Values.of(block))
    return digest


@given(rows=ROWS, at=st.integers(0, 8), data=st.data())
def test_the_same_rows_have_one_digest(rows: list[bytes], at: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(rows))
    assert digest_of(rows) == digest_of(shuffled[:at], shuffled[at:])


@given(rows=ROWS, others=ROWS)
def test_different_rows_have_different_digests(rows: list[bytes], others: list[bytes]) -> None:
    assert (digest_of(rows) == digest_of(others)) == (sorted(rows) == sorted(others))


@given(rows=ROWS, others=ROWS)
def test_digests_are_added_and_parsed(rows: list[bytes], others: list[bytes]) -> None:
    whole = digest_of(rows, others)
    assert digest_of(rows) + digest_of(others) == whole
    count, _, digits = str(whole).partition(":")
    assert (int(count), len(digits)) == (len(rows) + len(others), 32)
    assert RowDigest.parse(str(whole)) == whole
