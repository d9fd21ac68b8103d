"""A store waits for what other stores have of committed offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core import Store
from dafka_core.kafka.groups import other_heads
from dafka_core.kafka.groups.group_records import OFFSETS_TOPIC
from dafka_core.kafka.groups.other_heads import OtherHeads
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.testing import wait_until
from dafka_core.values import Values


def test_what_another_store_has_is_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OtherHeads(store).wait_for()  # there is no other
    with Store(tmp_path / "other", tower=store.options.tower) as other:
        tp = TopicPartition(OFFSETS_TOPIC, other.address)
        batch = RecordBatch(tp, 0, Values.of([b"a", b"b"]))
        other.append_queue.put(batch).result(30)
        wait_until(lambda: other.address in store.stores_here, "the stores meet")
        OtherHeads(store).wait_for()
        assert store.log.end(tp) == 2
        # What does not come is not waited for without an end.
        monkeypatch.setattr(other_heads, "WAIT_S", 0.1)
        monkeypatch.setattr(OtherHeads, "_ends", lambda self: {tp: 3})
        OtherHeads(store).wait_for()
