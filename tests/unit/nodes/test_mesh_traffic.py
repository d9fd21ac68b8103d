"""Received and sent messages are counted, independently of their contents."""

from __future__ import annotations

import pytest

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.traffic import MeshTraffic
from dafka_core.protocol.codec import encode
from dafka_core.protocol.messages import DirectRecordBatches, Head
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.security.permissions import EVERYBODY, NOBODY
from dafka_core.security.throttles import REPEAT_AFTER_S

TP = TopicPartition("t", "p")
BATCH = RecordBatch.of(TP, 5, [b"abc", b"de"])


def test_records_are_counted_by_how_they_are_sent() -> None:
    traffic = MeshTraffic("store S")
    traffic.add_received(BATCH)
    assert (traffic.records_received, traffic.bytes_received) == (2, 5)
    traffic.add_sent(OutgoingBatch(BATCH))
    assert (traffic.live_records, traffic.live_bytes) == (2, 5)
    traffic.add_sent(OutgoingBatch(BATCH, "R"))
    assert (traffic.direct_records, traffic.direct_bytes) == (2, 5)


def test_an_answer_with_many_partitions_is_one_message_and_all_their_records() -> None:
    traffic = MeshTraffic("store S")
    other = RecordBatch.of(TopicPartition("t", "q"), 0, [b"x"])
    traffic.add_sent_message(DirectRecordBatches.of("R", [BATCH, other]))
    traffic.add_sent_message(Head("t", "p", 6))
    assert traffic.sent == {"DirectRecordBatches": 1, "Head": 1}
    assert traffic.direct_records == 3
    assert traffic.direct_bytes >= 6


def test_refused_frames_are_counted_by_reason() -> None:
    traffic = MeshTraffic("store S")
    assert traffic.admitted(EVERYBODY, [b"no message"]) is None
    assert traffic.admitted(NOBODY, encode(Head("t", "p", 6))) is None
    assert not traffic.admits_records(NOBODY, BATCH)
    assert traffic.records_received == 0
    assert traffic.admitted(EVERYBODY, encode(Head("t", "p", 6))) == Head("t", "p", 6)
    assert traffic.refused == {"message": 1, "forbidden": 2}


def test_each_reason_is_logged_at_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, now = MeshTraffic("store S"), 1_000.0
    monkeypatch.setattr("dafka_core.security.throttles.time.monotonic", lambda: now)

    def logged() -> list[str]:
        lines = [each.getMessage() for each in caplog.records]
        caplog.clear()
        return lines

    for _ in range(3):
        assert traffic.admitted(EVERYBODY, [b"no message"]) is None
    traffic.refuse("beacon", "no host")
    first = logged()
    assert len(first) == 2
    assert "1 frames refused so far, reason message (the last one: " in first[0]
    assert "S: 1 frames refused so far, reason beacon (the last one: no host);" in first[1]
    now += REPEAT_AFTER_S
    traffic.refuse("message", "no message")
    (again,) = logged()
    assert "4 frames refused so far, reason message" in again
