"""Envelopes by column match those of single records, beside any others."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dafka_core.model.envelope import HAS_KEY, MAGIC, MAX_LENGTHS_BYTES, closed
from dafka_core.model.envelope_columns import HEADERS_TYPE, close_columns, opened_columns
from dafka_core.model.values import Values
from tests.unit.model import envelopes

unhurried = settings(deadline=None)
VALUES_ONLY = envelopes.values_only()
VECTORS = envelopes.vectors()


def opened(contents: Sequence[bytes]) -> list[envelopes.Parts]:
    """Through the columns, as part of a larger buffer."""
    beside = pa.array([b"before", *contents, b"after"], pa.binary())
    return parts_of(Values.from_arrow(beside)[1:-1])


def parts_of(values: Values) -> list[envelopes.Parts]:
    found = opened_columns(values)
    if found is None:
        return [(None, value, ()) for value in values]
    assert found["headers"].type == HEADERS_TYPE
    for column in found.values():
        column.validate(full=True)
    keys, contents, headers = (found[name].to_pylist() for name in ("key", "value", "headers"))
    pairs = [tuple((each["key"], each["value"]) for each in row or ()) for row in headers]
    return list(zip(keys, contents, pairs, strict=True))


def columns_of(parts: Sequence[envelopes.Parts]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Values, keys and headers: slices of longer columns."""
    padded = [(b"before", b"x", (("h", b"x"),)), *parts, (None, None, ())]
    keys, values, headers = zip(*padded, strict=True)
    made = (
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()),
        pa.array(headers, HEADERS_TYPE),
    )
    return tuple(column.slice(1, len(parts)) for column in made)


@pytest.mark.parametrize(("parts", "content"), VECTORS)
def test_vectors_of_the_specification(parts: envelopes.Parts, content: bytes) -> None:
    assert close_columns(*columns_of([parts])).to_pylist() == [content]
    assert opened([content]) == [parts]


@pytest.mark.parametrize(("parts", "content"), VECTORS)
def test_a_part_of_an_envelope_is_a_value(parts: envelopes.Parts, content: bytes) -> None:
    cuts = [content[:at] for at in range(len(content))]
    more = [content + bytes([octet]) for octet in range(256)]
    # All of them beside a whole one: none has a bearing on another.
    beside = [*cuts, content, *more]
    expected: list[envelopes.Parts] = [(None, value, ()) for value in beside]
    expected[len(cuts)] = parts
    assert opened(beside) == expected


@pytest.mark.parametrize("content", VALUES_ONLY)
def test_an_invalid_envelope_is_a_value(content: bytes) -> None:
    whole = VECTORS[3][1]
    assert opened([content]) == [(None, content, ())]
    # The next bytes would complete the magic of a value that ends too early.
    assert opened([whole, content, b"DFK", whole])[1] == (None, content, ())


@unhurried
@given(records=st.lists(envelopes.PARTS, min_size=1, max_size=6))
def test_closed_columns_are_opened(records: list[envelopes.Parts]) -> None:
    contents = close_columns(*columns_of(records)).to_pylist()
    assert contents == [closed(value, key, headers) for key, value, headers in records]
    assert opened(contents) == records


@unhurried
@given(
    contents=st.lists(
        envelopes.MISTAKABLE | st.sampled_from([content for _, content in VECTORS]), max_size=6
    )
)
def test_any_bytes_are_opened_as_specified(contents: list[bytes]) -> None:
    assert opened(contents) == [envelopes.opened(content) for content in contents]


@unhurried
@given(parts=envelopes.PARTS, at=st.integers(0, 400), octet=st.integers(0, 255))
@example(parts=(b"k", b"v", ()), at=6, octet=0xFF)
def test_a_changed_byte_is_read_as_specified(parts: envelopes.Parts, at: int, octet: int) -> None:
    key, value, headers = parts
    content = bytearray(closed(value, key, headers))
    if at < len(content):
        content[at] = octet
    beside = VECTORS[4][1]
    expected = [envelopes.opened(each) for each in (beside, bytes(content), beside)]
    assert opened([beside, bytes(content), beside]) == expected


@unhurried
@given(value=envelopes.MISTAKABLE)
def test_a_value_that_looks_like_an_envelope_stays_a_value(value: bytes) -> None:
    contents = close_columns(pa.array([b"x", value], pa.binary())).to_pylist()
    assert contents == [b"x", closed(value)]
    assert opened(contents) == [(None, b"x", ()), (None, value, ())]


def test_bare_values_are_not_copied() -> None:
    values = pa.array([b"one", b"", b"three"], pa.binary())
    made = close_columns(values, pa.nulls(3, pa.binary()), pa.array([None, [], None], HEADERS_TYPE))
    assert made.buffers()[2].address == values.buffers()[2].address
    assert opened_columns(Values.from_arrow(values)) is None
    assert opened_columns(Values()) is None


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.large_binary()], ids=str)
def test_every_binary_type_is_closed(type_: pa.DataType) -> None:
    values = pa.array(["a", None, "c"], type_)
    contents = close_columns(values, pa.array([None, "k", "é"], type_)).to_pylist()
    assert opened(contents) == [(None, b"a", ()), (b"k", None, ()), ("é".encode(), b"c", ())]


def test_a_name_that_is_not_utf8_is_shown_with_replacements() -> None:
    content = closed(b"v", headers=(("ab", b"1"), ("cd", b"2"))).replace(b"ab1", b"a\xff1")
    assert opened([content]) == [(None, b"v", (("a\ufffd", b"1"), ("cd", b"2")))]


def test_invalid_headers_are_refused() -> None:
    nameless = pa.array([[{"key": None, "value": b"x"}]], HEADERS_TYPE)
    with pytest.raises(ValueError, match="a header's name is null"):
        close_columns(pa.array([b"v"]), None, nameless)
    with pytest.raises(ValueError, match="a header's name is null"):
        close_columns(pa.array([b"v"]), None, pa.array([[None]], HEADERS_TYPE))
    many = pa.array([[("", None)] * MAX_LENGTHS_BYTES], HEADERS_TYPE)
    with pytest.raises(ValueError, match="too many headers"):
        close_columns(pa.array([b"v"]), None, many)


def test_a_null_list_of_headers_hides_its_elements() -> None:
    pairs = pa.array([("a", b"1"), ("b", b"2")], HEADERS_TYPE.value_type)
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pairs, mask=pa.array([True, False]))
    contents = close_columns(pa.array([b"v", b"w"]), None, headers.cast(HEADERS_TYPE)).to_pylist()
    assert opened(contents) == [(None, b"v", ()), (None, b"w", (("b", b"2"),))]


ENVELOPES = [(parts, content) for parts, content in VECTORS if content.startswith(MAGIC)]
SHORT = st.binary(max_size=60)
LONG = st.binary(min_size=130, max_size=300)


@st.composite
def of_one_shape(draw: st.DrawFn) -> list[envelopes.Parts]:
    """Records with equal flags, header counts and lengths of lengths."""
    key, value = draw(st.sampled_from([None, SHORT, LONG])), draw(st.sampled_from([SHORT, LONG]))
    headers = draw(st.lists(st.sampled_from([SHORT, LONG, None]), min_size=key is None, max_size=3))
    name = st.text("abä", max_size=5)
    one = st.tuples(
        st.none() if key is None else key,
        value,
        st.tuples(*(st.tuples(name, st.none() if of is None else of) for of in headers)),
    )
    return draw(st.lists(one, min_size=1, max_size=5))


@unhurried
@given(records=of_one_shape())
def test_records_of_one_shape_are_opened(records: list[envelopes.Parts]) -> None:
    contents = [closed(value, key, headers) for key, value, headers in records]
    assert parts_of(Values.of(contents)) == records
    assert parts_of(Values.of([*contents, b"bare"])) == [*records, (None, b"bare", ())]


@pytest.mark.parametrize(("parts", "content"), ENVELOPES)
def test_an_invalid_envelope_is_found_among_others_of_its_shape(
    parts: envelopes.Parts, content: bytes
) -> None:
    others = [content[:at] for at in range(4, len(content))]
    others += [content + bytes([octet]) for octet in range(256)]
    for other in others:
        beside = [content, other, content]
        assert parts_of(Values.of(beside)) == [parts, envelopes.opened(other), parts]
        assert parts_of(Values.of(beside[1:])) == [envelopes.opened(other), parts]


@unhurried
@given(records=of_one_shape(), at=st.integers(4, 40), octet=st.integers(0, 255))
@example(records=[(b"k", b"v", ())], at=6, octet=0xFF)
@example(records=[(None, b"\xc1DFK", (("a", None),))], at=7, octet=0)
def test_a_changed_byte_in_a_head_is_read_as_specified(
    records: list[envelopes.Parts], at: int, octet: int
) -> None:
    contents = [closed(value, key, headers) for key, value, headers in records]
    changed = bytearray(contents[-1])
    changed[min(at, len(changed) - 1)] = octet
    for beside in ([*contents, bytes(changed)], [bytes(changed), *contents], [bytes(changed)] * 2):
        assert parts_of(Values.of(beside)) == [envelopes.opened(each) for each in beside]


@pytest.mark.parametrize("changed", [{4: 2}, {5: HAS_KEY}, {5: 7}, {6: 3}, {7: 0x82}, {8: 0x80}])
def test_a_head_of_another_shape_stays_a_value(changed: dict[int, int]) -> None:
    content = closed(b"value", b"k1")
    other = bytearray(content)
    for at, octet in changed.items():
        other[at] = octet
    assert parts_of(Values.of([content, bytes(other)])) == [
        (b"k1", b"value", ()),
        (None, bytes(other), ()),
    ]


@pytest.mark.parametrize("count", [62, 63, 64, 5_000, MAX_LENGTHS_BYTES // 2 - 1])
def test_records_with_many_headers_are_opened(count: int) -> None:
    parts: envelopes.Parts = (b"k", b"v", (("", None),) * count)
    content = closed(parts[1], parts[0], parts[2])
    assert opened([content, b"bare", content]) == [parts, (None, b"bare", ()), parts]
