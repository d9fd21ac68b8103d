"""Heads of one shape are taken column by column, and say what any heads do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dafka_core.envelope import HAS_KEY, MAGIC, closed
from dafka_core.envelope_columns import opened_columns
from dafka_core.envelope_heads import MAX_COLUMNS, Heads, heads_of
from dafka_core.values import Values
from tests.unit.core import envelopes

unhurried = settings(deadline=None)
VECTORS = envelopes.vectors()
ENVELOPES = [(parts, content) for parts, content in VECTORS if content.startswith(MAGIC)]
SHORT = st.binary(max_size=60)
LONG = st.binary(min_size=130, max_size=300)


@st.composite
def of_one_shape(draw: st.DrawFn) -> list[envelopes.Parts]:
    """Records with a key, or all without one; as many headers; lengths of as many octets."""
    key, value = draw(st.sampled_from([None, SHORT, LONG])), draw(st.sampled_from([SHORT, LONG]))
    headers = draw(st.lists(st.sampled_from([SHORT, LONG, None]), min_size=key is None, max_size=3))
    name = st.text("abä", max_size=5)
    one = st.tuples(
        st.none() if key is None else key,
        value,
        st.tuples(*(st.tuples(name, st.none() if of is None else of) for of in headers)),
    )
    return draw(st.lists(one, min_size=1, max_size=5))


def heads(contents: Sequence[bytes]) -> Heads:
    values = Values.of([*contents])
    ends, data = values.columns()
    return heads_of(np.frombuffer(data, np.uint8), ends, values.starting_with(MAGIC))


def by_column(found: Heads) -> bool:
    """Whether they were taken so."""
    return found.starts.dtype == np.int32


def opened(contents: Sequence[bytes]) -> list[envelopes.Parts]:
    columns = opened_columns(Values.of([*contents]))
    if columns is None:
        return [(None, value, ()) for value in contents]
    keys, values, headers = (columns[name].to_pylist() for name in ("key", "value", "headers"))
    pairs = [tuple((each["key"], each["value"]) for each in row or ()) for row in headers]
    return list(zip(keys, values, pairs, strict=True))


@unhurried
@given(records=of_one_shape())
def test_heads_of_one_shape_say_what_any_heads_do(records: list[envelopes.Parts]) -> None:
    contents = [closed(value, key, headers) for key, value, headers in records]
    alike, any_ = heads(contents), heads([*contents, b"bare"])
    assert by_column(alike)
    assert not by_column(any_)
    assert opened(contents) == records
    assert any_.starts.tolist() == [*alike.starts.tolist(), alike.starts[-1] + len(b"bare")]
    assert any_.firsts.tolist()[:-1] == alike.firsts.tolist()
    for name in ("rows", "flags", "header_counts", "names", "are_null"):
        assert getattr(any_, name).tolist() == getattr(alike, name).tolist()


@pytest.mark.parametrize(("parts", "content"), ENVELOPES)
def test_what_is_no_envelope_is_none_beside_those_of_its_shape(
    parts: envelopes.Parts, content: bytes
) -> None:
    others = [content[:at] for at in range(4, len(content))]
    others += [content + bytes([octet]) for octet in range(256)]
    for other in others:
        beside = [content, other, content]
        assert opened(beside) == [parts, envelopes.opened(other), parts]
        assert opened(beside[1:]) == [envelopes.opened(other), parts]


@unhurried
@given(records=of_one_shape(), at=st.integers(4, 40), octet=st.integers(0, 255))
@example(records=[(b"k", b"v", ())], at=6, octet=0xFF)
@example(records=[(None, b"\xc1DFK", (("a", None),))], at=7, octet=0)
def test_a_changed_octet_is_read_as_the_page_says(
    records: list[envelopes.Parts], at: int, octet: int
) -> None:
    contents = [closed(value, key, headers) for key, value, headers in records]
    changed = bytearray(contents[-1])
    changed[min(at, len(changed) - 1)] = octet
    for beside in ([*contents, bytes(changed)], [bytes(changed), *contents], [bytes(changed)] * 2):
        assert opened(beside) == [envelopes.opened(each) for each in beside]


@pytest.mark.parametrize("changed", [{4: 2}, {5: HAS_KEY}, {5: 7}, {6: 3}, {7: 0x82}, {8: 0x80}])
def test_one_that_differs_is_taken_with_all_heads(changed: dict[int, int]) -> None:
    content = closed(b"value", b"k1")
    assert by_column(heads([content] * 3))
    other = bytearray(content)
    for at, octet in changed.items():
        other[at] = octet
    assert not by_column(heads([content, bytes(other), content]))
    assert opened([content, bytes(other)]) == [(b"k1", b"value", ()), (None, bytes(other), ())]


def test_many_headers_are_not_taken_by_column() -> None:
    most = closed(b"", b"", (("", None),) * (MAX_COLUMNS // 2 - 1))
    more = closed(b"", b"", (("", None),) * (MAX_COLUMNS // 2))
    assert by_column(heads([most]))
    assert not by_column(heads([more]))
    assert opened([more]) == [envelopes.opened(more)]
