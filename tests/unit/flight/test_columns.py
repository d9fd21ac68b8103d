"""Records as columns, and the metadata beside their batches."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.flight.columns import Part, packed_parts, parse_parts
from dafka_core.model.records import MatchedRecords, RecordBatch, Records, TopicPartition
from dafka_core.model.values import Values

TP = TopicPartition("t", "P")


def buffer(*numbers: int) -> pa.Buffer:
    return pa.py_buffer(np.array(numbers, "<i8").tobytes())


def records(offset: int, times: list[tuple[int, int]], gaps: int) -> Records:
    """Records, or with ``gaps`` a scan in which more records did not match."""
    values = Values.of([b""] * sum(count for count, _ in times))
    if not gaps:
        return RecordBatch(TP, offset, values, times=np.array(times, np.int64))
    end = offset + gaps + len(values)
    rows = np.arange(end - len(values), end)
    return MatchedRecords(TP, offset, end, rows, values, np.array(times, np.int64))


RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(-(2**62), 2**62)), min_size=1, max_size=4)
FOUND = st.builds(records, st.integers(0, 2**61), RUNS, st.integers(0, 9))
PARTS = st.tuples(st.integers(0, 999), FOUND)


@settings(deadline=None)
@given(st.lists(PARTS.map(Part._make), min_size=1, max_size=20))
def test_parts_are_parsed_again(parts: list[Part]) -> None:
    total = sum(part.records.count for part in parts)
    facts = [(number, each.offset, each.end, each.count) for number, each in parts]
    for times in (True, False):
        packed = pa.py_buffer(packed_parts(parts, times=times))
        found = parse_parts(packed, total, times=times)
        assert [each[:4] for each in found] == facts
        for (*_, runs), (_, given_) in zip(found, parts, strict=True):
            assert (runs is not None) == times
            assert runs is None or runs.tolist() == given_.times.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("metadata", "count", "times"),
    [
        (None, 1, False),
        (pa.py_buffer(b"x" * 17), 1, False),
        (buffer(), 1, False),
        (buffer(1), 1, False),
        (buffer(1, 0), 0, False),
        (buffer(1, -1), 1, False),
        (buffer(1, 2**62), 1, False),
        (buffer(2, 1, 0, 0, 1, 1, 0), 1, False),
        (buffer(1, 1, 0, 0, 1), 1, False),
        (buffer(1, 1, 0, 0, 1, 1, 0, 0), 1, False),
        (buffer(1, 1, 0, 0, 1, 1, 0), 2, False),
        (buffer(1, 2, 0, 0, 3, 3, 0, 1, 0, 1, -1, 0), 2, False),
        (buffer(1, 2, 0, 0, 2, 2**62, 0, 1, 0, 2, 2**62, 0), 2, False),
        (buffer(1, 1, 0, 0, 1, 1, 1, 1, 9), 1, False),
        (buffer(1, 1, 0, 0, 1, 1, 0, 1, 9), 1, False),
        (buffer(1, 1, 0, 0, 1, 1, 0), 1, True),
        (buffer(1, 1, 0, 0, 1, 1, -1), 1, True),
        (buffer(1, 1, 0, 0, 1, 1, 2, 1, 9), 1, True),
        (buffer(1, 1, 0, 0, 2, 2, 1, 1, 9), 2, True),
        (buffer(1, 1, 0, 0, 2, 2, 2, 3, 9, -1, 9), 2, True),
        (buffer(1, 1, 0, 0, 2, 2, 3, 2**63 - 1, 9, 2**63 - 1, 9, 4, 9), 2, True),
        (buffer(1, 2, 0, 0, 1, 1, 0, 1, 0, 1, 1, 2, 1, 9, 1, 9), 2, True),
    ],
)
def test_metadata_that_are_wrong_are_refused(
    metadata: pa.Buffer | None, count: int, times: bool
) -> None:
    with pytest.raises(ValueError, match="a batch's"):
        parse_parts(metadata, count, times=times)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 4), max_size=16), st.booleans())
def test_any_metadata_are_parsed_or_refused(numbers: list[int], times: bool) -> None:
    try:
        found = parse_parts(buffer(*numbers), 2, times=times)
    except ValueError:
        return
    assert sum(count for _, _, _, count, _ in found) == 2
    for _, _, _, count, runs in found:
        assert (runs is not None) == times
        assert runs is None or int(runs[:, 0].sum()) == count
