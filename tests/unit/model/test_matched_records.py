"""The matching records of a batch, with their offsets and timestamps."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.envelope import closed
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition, concat
from dafka_core.model.values import Values
from dafka_core.model.where import Where, matched

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
