"""The content of packed messages: what is in it comes out, and what does not add up is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import ProtocolError
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import MAX_BATCH_COUNT, RUN_BYTES
from dafka_core.protocol.packed_records import pack_times, unpack_batch
from dafka_core.records import PartitionInfo, times_between
from tests.unit.protocol.strategies import packed, runs_of

BATCHES: list[m.RecordBatchMessage | m.DirectRecordBatch] = [
    m.RecordBatchMessage("t", "P", 7, 1, bytes(4)),
    m.DirectRecordBatch("C", "t", "P", 7, 1, bytes(4)),
]


def test_the_most_records_there_may_be() -> None:
    value = b"\1\0\0\0" * MAX_BATCH_COUNT + bytes(MAX_BATCH_COUNT)
    lengths, records, times = unpack_batch(MAX_BATCH_COUNT, value)
    assert times is None
    assert lengths.tolist() == [1] * MAX_BATCH_COUNT
    assert records == bytes(MAX_BATCH_COUNT)


@given(
    st.lists(st.binary(max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6),
    st.data(),
)
def test_timestamps_of_a_part_come_back(
    values: list[bytes], stamps: list[int], data: st.DataObject
) -> None:
    times = np.array(runs_of(len(values), stamps))
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    octets = pack_times(times, start, stop)
    content = octets + packed(values[start:stop])
    found = unpack_batch(stop - start, content, len(octets) // RUN_BYTES)
    assert found.times is not None
    assert found.times.tolist() == times_between(times, start, stop).tolist()
    assert bytes(found.records) == b"".join(values[start:stop])


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
@pytest.mark.parametrize(
    ("runs", "content", "why"),
    [
        (1, packed([b"a", b"b"], [(1, 5)]), "are not those of its records"),
        (1, packed([b"a", b"b"], [(3, 5)]), "are not those of its records"),
        (2, packed([b"a", b"b"], [(2, 5), (0, 6)]), "are not those of its records"),
        (2, packed([b"a", b"b"], [(2**32 - 1, 5), (3, 6)]), "are not those of its records"),
        (1, packed([b"a", b"b"], [(2, -1)]), "a timestamp is after the epoch"),
        (1, packed([b"a", b"b"]), "shorter than its lengths"),
        (2**32 - 1, packed([b"a", b"b"], [(2, 5)]), "shorter than its lengths"),
    ],
)
def test_timestamps_are_those_of_the_records(
    batch: m.RecordBatchMessage | m.DirectRecordBatch, runs: int, content: bytes, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        replace(batch, count=2, runs=runs, value=content)
    right = packed([b"a", b"b"], [(2, 5)])
    assert replace(batch, count=2, runs=1, value=right).value == right


def test_a_run_of_timestamps_has_records_of_one_partition() -> None:
    entries = (PartitionInfo("t", "P", 3, 5), PartitionInfo("t", "Q", 0, 1))
    values = [b"a", b"b", b"c"]
    for runs in ([(3, 5)], [(1, 5), (2, 6)]):
        with pytest.raises(ProtocolError, match="records of one partition"):
            m.DirectRecordBatches("C", entries, (None, None), len(runs), packed(values, runs))
    runs = [(1, 5), (1, 6), (1, 4)]
    batches = m.DirectRecordBatches("C", entries, (None, None), 3, packed(values, runs))
    found = [*batches.batches()]
    assert [b.times.tolist() for b in found if b.times is not None] == [[[1, 5], [1, 6]], [[1, 4]]]
    assert m.DirectRecordBatches.of("C", found) == batches
