"""The contents and create times of published records."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import ConfigError
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.values import Values
from dafka_core.nodes.producer import content_of, contents_of, time_of, times_of
from tests.unit.model import envelopes

BEGUN = closed(b"v", b"k")
NOW = datetime(2026, 7, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def us(time: datetime) -> int:
    return round(time.timestamp() * 1e6)


@settings(deadline=None)
@given(records=st.lists(envelopes.PARTS, min_size=1, max_size=5))
def test_lists_and_arrays_have_equal_contents(records: list[envelopes.Parts]) -> None:
    keys, values, headers = (list(column) for column in zip(*records, strict=True))
    expected = [content_of(value, key, pairs, "auto") for key, value, pairs in records]
    assert contents_of(iter(values), keys, headers, "auto") == expected
    array, key_array = pa.array(values, pa.binary()), pa.array(keys, pa.binary())
    header_array = pa.array(headers, HEADERS_TYPE)
    assert contents_of(array, key_array, header_array, "auto") == expected
    assert contents_of(values, None, None, "auto") == [closed(value) for value in values]
    assert contents_of(array, None, None, "auto") == [closed(value) for value in values]


@pytest.mark.parametrize(
    "values", [[b"a", BEGUN], pa.array([b"a", BEGUN]), Values.of([b"a", BEGUN])]
)
def test_a_value_that_begins_like_an_envelope_is_enclosed(values: Any) -> None:
    assert contents_of(values, None, None, "auto") == [b"a", closed(BEGUN)]
    assert contents_of(values, None, None, "none") == [b"a", BEGUN]
    assert content_of(BEGUN, None, None, "none") == BEGUN


def test_plain_values_are_not_copied() -> None:
    values = Values.of([b"a"])
    assert contents_of(values, None, None, "auto") is values


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((["v"],), r"^values\[0\]: a record's value must be bytes or None; got str"),
        (([b"v"], ["k"]), "key must be bytes or None; got str"),
        (([b"v"], None, [["h"]]), r"a header must be a pair \(name, value\).*; got 'h'"),
        (([b"v"], None, [[(b"h", b"")]]), "its name a text"),
        (([b"v"], None, [[("h", "v")]]), "value of header 'h' must be bytes or None; got str"),
        (([b"v"], None, [{"h": b"v"}]), "got 'h'"),
        ((pa.array([1]),), "values of records must be an array of binary or string, not int64"),
        ((pa.array([b"v"]), [b"k"]), "keys of records must be an array of .*, not list"),
        ((pa.array([b"v"]), None, [[]]), "headers beside an array must be lists of structs of two"),
        ((pa.array([b"v"]), None, pa.array([[1]])), "headers beside an array must be lists"),
    ],
)
def test_other_types_are_errors(given: Any, says: str) -> None:
    values, keys, headers = (*given, None, None)[:3]
    with pytest.raises(TypeError, match=says):
        contents_of(values, keys, headers, "auto")


@pytest.mark.parametrize("keys", [[b"k"], []])
def test_a_wrong_number_of_keys_is_an_error(keys: Any) -> None:
    for values, of in (([b"v", b"w"], keys), (pa.array([b"v", b"w"]), pa.array(keys, pa.binary()))):
        with pytest.raises(
            ValueError, match=f"2 values have {len(keys)} keys, or lists of headers"
        ):
            contents_of(values, of, None, "auto")


@pytest.mark.parametrize(
    "given", [(b"v", b"k", None), (None, None, None), (b"v", None, [("h", None)])]
)
def test_without_envelopes_only_values_are_published(given: Any) -> None:
    said = "option 'envelope' = 'none': publishes no keys, headers and null values"
    value, key, headers = given
    with pytest.raises(ConfigError, match=said):
        content_of(value, key, headers, "none")
    with pytest.raises(ConfigError, match=said):
        contents_of([value], [key], [headers], "none")
    arrays = pa.array([value], pa.binary()), key and pa.array([key])
    with pytest.raises(ConfigError, match=said):
        contents_of(*arrays, headers and pa.array([headers], HEADERS_TYPE), "none")


def test_create_times() -> None:
    assert time_of(NOW) == us(NOW)
    assert time_of(NOW.replace(year=1)) == us(NOW.replace(year=1)) < 0


@pytest.mark.parametrize(
    ("timestamp", "says"),
    [
        (NOW.replace(tzinfo=None), "must be a datetime with a time zone"),
        (1_700_000_000, "must be a datetime with a time zone"),
    ],
)
def test_create_times_without_a_time_zone_are_errors(timestamp: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^argument 'timestamp' = .*: .*{says}"):
        time_of(timestamp)


def test_create_times_in_an_array() -> None:
    array = pa.array([NOW, None, NOW + SECOND], pa.timestamp("ms", "Europe/Berlin"))
    assert times_of(array, 3, 7).tolist() == [us(NOW), 7, us(NOW + SECOND)]
    for wrong in (array[:2], array.cast(pa.timestamp("us")), pa.array([1, 2, 3])):
        with pytest.raises(ConfigError, match="must have a time with a time zone for each record"):
            times_of(wrong, 3, 7)


@pytest.mark.parametrize("names", [("name", "value"), ("key", "content"), ("value", "key")])
def test_the_fields_of_headers_in_an_array_may_have_any_names(names: tuple[str, str]) -> None:
    pair = pa.struct([(names[0], pa.large_utf8()), (names[1], pa.large_binary())])
    rows = [[("a", b"1"), ("b", None)], None]
    headers = pa.array(rows, pa.list_(pair))
    found = contents_of(pa.array([b"v", b"w"]), None, headers, "auto")
    assert found == contents_of([b"v", b"w"], None, rows, "auto")


def test_a_map_is_no_list_of_headers() -> None:
    headers = pa.array([[("a", b"1")]], pa.map_(pa.utf8(), pa.binary()))
    with pytest.raises(TypeError, match="headers beside an array must be lists of structs of two"):
        contents_of(pa.array([b"v"]), None, headers, "auto")
