"""Conditions on records: what they say, and what is refused, with which sentence."""

import datetime as dt
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.envelope import closed
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition, concat
from dafka_core.model.values import Values
from dafka_core.model.where import (
    MAX_CHARACTERS,
    MAX_COMPARISONS,
    MAX_DEPTH,
    MAX_WILDCARDS,
    TYPES,
    Comparison,
    Where,
    matched,
)

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ROWS: dict[str, list[Any]] = {
    "key": [b"a", None, b"b", b"\xff", b""],
    "value": [b"one", b"two\nlines", None, b"it's 100%", "naïve".encode()],
    "topic": ["t"] * 5,
    "partition": [r"P\xff"] * 5,
    "offset": [5, 6, 7, 8, 9],
    "timestamp": [NOON, NOON, NOON + dt.timedelta(hours=1), None, NOON + dt.timedelta(hours=2)],
}


def column(name: str) -> pa.Array:
    return pa.array(ROWS[name], TYPES[name])


def fitting(text: str, column: Callable[[str], pa.Array] = column) -> list[int]:
    where = pickle.loads(pickle.dumps(Where.parse(text)))
    mask = where.mask(column).to_pylist()
    return [row for row, fits in enumerate(mask) if fits]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("key = 'a'", [0]),
        ("KEY == 'a'", [0]),
        ("`key` <> 'a'", [2, 3, 4]),
        ("key != 'a'", [2, 3, 4]),
        ("NOT key = 'a'", [2, 3, 4]),
        ("key = X'ff'", [3]),
        ("key = ''", [4]),
        ("key >= 'b'", [2, 3]),
        ("key in ('a', x'FF', 'z')", [0, 3]),
        ("key NOT IN ('a', 'z')", [2, 3, 4]),
        ("NOT (key IN ('a', 'z'))", [2, 3, 4]),
        ("key IS NULL", [1]),
        ("key is not null and value is null", [2]),
        ("value = 'it''s 100%'", [3]),
        ("value = 'naïve'", [4]),
        ("value LIKE 'two%'", [1]),
        ("value LIKE 'two%lines'", [1]),
        ("value LIKE '%e%'", [0, 1, 4]),
        ("value LIKE '%''s 1%'", [3]),
        ("value LIKE '%ï%'", [4]),
        ("value LIKE '_ne'", [0]),
        ("value LIKE 'na_ve' OR value LIKE 'two_lines'", [1, 4]),
        ("value LIKE '_%_0_'", [3]),
        ("key LIKE '_'", [0, 2, 3]),
        ("value LIKE '%'", [0, 1, 3, 4]),
        ("value LIKE '%%'", [0, 1, 3, 4]),
        ("value NOT LIKE '%e'", [1, 3]),
        ("topic = 't'", [0, 1, 2, 3, 4]),
        ("topic LIKE 't%' AND partition = 'P'", []),
        ("offset = 7", [2]),
        ("offset < 6 OR offset > 8", [0, 4]),
        ("offset BETWEEN 6 AND 7 AND key IS NOT NULL", [2]),
        ("offset NOT BETWEEN 6 AND 8", [0, 4]),
        ("offset >= -1", [0, 1, 2, 3, 4]),
        ("timestamp > '2026-01-01T12:00:00Z'", [2, 4]),
        ("timestamp <= TIMESTAMP '2026-01-01T14:00:00+01:00'", [0, 1, 2]),
        ("timestamp IN ('2026-01-01 12:00:00Z')", [0, 1]),
        ("timestamp IS NULL", [3]),
        ("NOT timestamp > '2026-01-01T12:00:00Z'", [0, 1]),
        # AND before OR, NOT before both.
        ("key = 'a' OR key = 'b' AND offset = 5", [0]),
        ("(key = 'a' OR key = 'b') AND offset = 7", [2]),
        ("NOT key = 'a' AND offset > 7", [3, 4]),
        # An unknown value decides nothing, and hides nothing.
        ("key = 'a' OR value IS NULL OR offset = 6", [0, 1, 2]),
        ("NOT (key = 'x' AND offset = 6)", [0, 2, 3, 4]),
        ("key = 'x' AND NOT value = 'y'", []),
    ],
)
def test_matching_rows(text: str, rows: list[int]) -> None:
    assert fitting(text) == rows


def test_columns_are_not_made_after_the_result_is_known() -> None:
    made: list[str] = []

    def spied(name: str) -> pa.Array:
        made.append(name)
        return column(name)

    assert fitting("offset > 100 AND value = 'x'", spied) == []
    assert fitting("offset < 100 OR value = 'x'", spied) == [0, 1, 2, 3, 4]
    assert made == ["offset", "offset"]
    # Null is not false: where it is negated that matters.
    assert fitting("key = 'x' AND value = 'y'", spied) == []
    assert made[2:] == ["key", "value"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a condition like key = 'a' AND offset >= 5; it is empty"),
        ("vaule = 'x'", "has no column 'vaule': did you mean 'value'"),
        ("lower(key) = 'x'", "has no column 'lower': must be one of key, value, topic"),
        ("'a' = key", "must have a column, one of key, .* at character 1, but it has"),
        ("key", "must have = <> .* at character 4, but it ends"),
        ("key = ", "must have a text in single quotes at character 6, but it ends"),
        ("key = 5", "must have a text in single quotes at character 7, but it has '5'"),
        ("key = NULL", "must have a text in single quotes at character 7, but it has 'NULL'"),
        ('key = "a"', "must have a text in single quotes at character 7, but it has '\"'"),
        ("key = 'a", 'must have a text in single quotes at character 7, but it has "\'"'),
        ("offset = 'a'", "must have a whole number at character 10"),
        ("offset > 5.5", "must have a whole number at character 10, but it has '5.5'"),
        ("offset = 99999999999999999999", "99999999999999999999 is no offset"),
        ("offset LIKE '5%'", "LIKE is for key, value, topic, partition, not for offset"),
        ("key LIKE X'00'", "must have a text in single quotes"),
        ("topic = X'00'", "must have a text in single quotes"),
        ("key = X'0'", "must have pairs of hexadecimal digits in X'0'"),
        (r"key = 'a\n'", "has a backslash in a text"),
        ("key = '\udcff'", "has a character that is not Unicode"),
        ("timestamp > '2026-01-01'", "has no time zone: write Z"),
        ("timestamp > 'noon'", "must be a time like 2026-01-01T00:00:00Z"),
        ("(key = 'a'", r"must have \) at character 11, but it ends"),
        ("key = 'a' key = 'b'", "must have AND, OR or the end at character 11"),
        ("key IN ()", "must have a text in single quotes at character 9"),
        ("key IS 'a'", "must have NULL at character 8"),
        ("(" * MAX_DEPTH + "key = 'a'", f"at most {MAX_DEPTH} conditions within"),
        ("NOT " * MAX_DEPTH + "key = 'a'", f"at most {MAX_DEPTH} conditions within"),
        (" OR ".join(["offset = 1"] * (MAX_COMPARISONS + 1)), f"at most {MAX_COMPARISONS} comp"),
        (f"key LIKE 'a{'_' * (MAX_WILDCARDS + 1)}'", f"at most {MAX_WILDCARDS} of % and _"),
        (" OR ".join(["key LIKE '%a_b%'"] * (MAX_WILDCARDS + 1)), f"at most {MAX_WILDCARDS} of %"),
        (f"key = '{'a' * MAX_CHARACTERS}'", f"at most {MAX_CHARACTERS} characters"),
    ],
)
def test_invalid_conditions(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Where.parse(text)


def test_the_greatest_depth() -> None:
    within = MAX_DEPTH - 1  # the comparison is one level
    Where.parse(f"{'(' * within}key = 'a'{')' * within}")
    Where.parse(f"{'NOT ' * within}key = 'a'")


def test_wildcards_at_the_ends_do_not_count() -> None:
    Where.parse(f"key LIKE 'a{'_%' * (MAX_WILDCARDS // 2)}b' OR value LIKE '%a%'")
    Where.parse(" OR ".join(["key LIKE '%a%'"] * MAX_COMPARISONS))


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("offset >= 5", ["offset"]),
        ("offset >= 5 AND (topic = 't' AND key = 'a')", ["offset", "topic", "key"]),
        ("offset BETWEEN 1 AND 2 AND key = 'a'", ["offset", "offset", "key"]),
        ("offset >= 5 AND (topic = 't' OR key = 'a')", ["offset"]),
        ("NOT offset >= 5 AND topic = 't'", ["topic"]),
        ("offset >= 5 OR topic = 't'", []),
        ("NOT offset >= 5", []),
    ],
)
def test_needed_comparisons(text: str, needed: list[str]) -> None:
    found = Where.parse(text).needed
    assert [each.column for each in found] == needed
    assert all(isinstance(each, Comparison) for each in found)


TP = TopicPartition("t\udcff", "A")
US = dt.timedelta(microseconds=1)
FIRST_US = 1_767_225_600_000_000


def batch(values: list[bytes], runs: list[tuple[int, int]] | None = None) -> RecordBatch:
    times = None if runs is None else np.array(runs, np.int64)
    return RecordBatch(TP, 100, Values.of(values), times=times)


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b""]), st.integers(0, 3)), min_size=1),
    st.integers(0, 3),
)
def test_matching_records_keep_their_offsets_values_and_times(
    rows: list[tuple[bytes, int]], later: int
) -> None:
    ascending = np.cumsum([step for _, step in rows]) + FIRST_US
    runs = [(1, int(us)) for us in ascending]
    found = matched(
        batch([value for value, _ in rows], runs), Where.parse("value = 'a'"), opens=True
    )
    wanted = [row for row, (value, _) in enumerate(rows) if value == b"a"]
    assert (found.offset, found.end, found.count) == (100, 100 + len(rows), len(wanted))
    assert found.offsets.tolist() == [100 + row for row in wanted]
    assert found.values == [b"a"] * len(wanted)
    assert found.times is not None
    assert np.repeat(found.times[:, 1], found.times[:, 0]).tolist() == [
        int(ascending[row]) for row in wanted
    ]
    assert (found.times[:, 0] > 0).all()
    moment = dt.datetime.fromtimestamp(0, dt.UTC) + (FIRST_US + later) * US
    since = Where.parse(f"timestamp >= '{moment.isoformat()}'")
    later_rows = matched(batch([b""] * len(rows), runs), since, opens=False)
    expected = [100 + row for row, us in enumerate(ascending) if us >= FIRST_US + later]
    assert later_rows.offsets.tolist() == expected


def test_conditions_apply_to_opened_envelopes() -> None:
    contents = [closed(b"v", b"k"), b"v", closed(None, b"k")]
    where = Where.parse("key = 'k' OR value = 'v'")
    assert matched(batch(contents), where, opens=True).count == 3
    without_value = matched(batch(contents), Where.parse("value IS NULL"), opens=True)
    assert without_value.offsets.tolist() == [102]
    opened = matched(batch(contents), Where.parse("key = 'k'"), opens=True)
    assert opened.values == [contents[0], contents[2]], "contents stay as they are"
    assert matched(batch(contents), where, opens=False).offsets.tolist() == [101]


@pytest.mark.parametrize("runs", [None, [(3, UNKNOWN_US)]])
def test_an_unknown_time_matches_no_comparison(runs: list[tuple[int, int]] | None) -> None:
    records = batch([b"a", b"b", b"c"], runs)
    for text, count in (
        ("timestamp > '1970-01-01T00:00:00Z'", 0),
        ("NOT timestamp > '1970-01-01T00:00:00Z'", 0),
        ("timestamp IS NULL", 3),
    ):
        assert matched(records, Where.parse(text), opens=True).count == count


def test_conditions_apply_to_escaped_names() -> None:
    records = batch([b"a"])
    assert matched(records, Where.parse("topic LIKE 't_x__' AND partition = 'A'"), opens=True).count
    assert not matched(records, Where.parse("topic = 't'"), opens=True).count
    assert matched(records, Where.parse("topic LIKE 't%ff'"), opens=True).offsets[0] == 100


def test_neighbouring_ranges_are_joined() -> None:
    where = Where.parse("value <> 'x'")
    records = batch([b"a", b"x", b"b", b"x"], [(1, 5), (3, 6)])
    parts = [matched(each, where, opens=True) for each in records.split(1, 1 << 20)]
    found = concat(parts)
    assert found.tp == TP
    assert (found.offset, found.end, found.offsets.tolist()) == (100, 104, [100, 102])
    assert found.values == [b"a", b"b"]
    assert found.times is not None
    assert found.times.tolist() == [[1, 5], [1, 6]]
    assert concat(parts[1:2]) is parts[1]
