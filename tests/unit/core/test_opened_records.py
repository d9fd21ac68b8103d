"""The records of a batch, out of their envelopes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.envelope import closed
from dafka_core.opened_records import opened_records
from dafka_core.records import Record, RecordBatch, TopicPartition
from tests.unit.core import envelopes

TP = TopicPartition("t", "P")


@settings(deadline=None)
@given(
    contents=st.lists(
        envelopes.MISTAKABLE
        | envelopes.PARTS.map(lambda parts: closed(parts[1], parts[0], parts[2])),
        min_size=1,
        max_size=5,
    )
)
def test_each_record_has_its_own_parts(contents: list[bytes]) -> None:
    batch = RecordBatch.of(TP, 5, contents)
    parts = map(envelopes.opened, contents)
    assert list(opened_records(batch)) == [
        Record(*TP, offset, value, key, headers)
        for offset, (key, value, headers) in enumerate(parts, 5)
    ]
    bare = [Record(*TP, offset, content) for offset, content in enumerate(contents, 5)]
    assert list(opened_records(batch, opens=False)) == bare == list(batch.records())
