"""Records that people write."""

from __future__ import annotations

import pytest

from dafka_console import producing
from dafka_console.producing import Producers
from dafka_core import EmbeddedCluster
from dafka_core.errors import ClosedError, NotAcknowledgedError, RecordTooLargeError


def test_a_topic_has_one_partition_however_many_are_written(
    cluster: EmbeddedCluster, dafka_topic: str
) -> None:
    with Producers({"tower": cluster.tower}) as producers:
        written = [producers.produce(dafka_topic, b"v", b"k", [("h", b"x")]) for _ in range(3)]
        assert [offset for _, offset in written] == [0, 1, 2]
        assert len({partition for partition, _ in written}) == 1
    with pytest.raises(ClosedError):
        producers.produce(dafka_topic, b"v", None, [])


def test_few_producers_are_kept(
    cluster: EmbeddedCluster, dafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "MOST_PRODUCERS", 1)
    with Producers({"tower": cluster.tower}) as producers:
        first, _ = producers.produce(dafka_topic, b"v", None, [])
        producers.produce(f"{dafka_topic}-2", b"v", None, [])
        assert len(producers._producers) == 1
        again, offset = producers.produce(dafka_topic, b"v", None, [])
        assert (again != first, offset) == (True, 0)


def test_what_no_store_has_is_said(
    cluster: EmbeddedCluster, dafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "ACK_S", 0.2)
    with Producers({"tower": cluster.tower, "max_record_bytes": 4_096}) as producers:
        with pytest.raises(RecordTooLargeError):
            producers.produce(dafka_topic, b"v" * 10_000_000, None, [])
        producers._options["acks"] = 9
        with pytest.raises(NotAcknowledgedError):
            producers.produce(f"{dafka_topic}-2", b"v", None, [])
