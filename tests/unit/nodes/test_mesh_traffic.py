"""Received and sent messages are counted, independently of their contents."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.mesh import LOOK_S, REASONS, SAY_AGAIN_S, MeshTraffic, RefusedFrames
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.codec import encode
from dafka_core.protocol.messages import DirectRecordBatches, Head
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.security.permissions import EVERYBODY, NOBODY

TP = TopicPartition("t", "p")
BATCH = RecordBatch.of(TP, 5, [b"abc", b"de"])


def test_records_are_counted_by_how_they_are_sent() -> None:
    traffic = MeshTraffic("store S", BulkDecoder())
    traffic.add_received(BATCH)
    assert (traffic.records_received, traffic.bytes_received) == (2, 5)
    traffic.add_sent(OutgoingBatch(BATCH))
    assert (traffic.live_records, traffic.live_bytes) == (2, 5)
    traffic.add_sent(OutgoingBatch(BATCH, "R"))
    assert (traffic.direct_records, traffic.direct_bytes) == (2, 5)


def test_an_answer_with_many_partitions_is_one_message_and_all_their_records() -> None:
    traffic = MeshTraffic("store S", BulkDecoder())
    other = RecordBatch.of(TopicPartition("t", "q"), 0, [b"x"])
    traffic.add_sent_message(DirectRecordBatches.of("R", [BATCH, other]))
    traffic.add_sent_message(Head("t", "p", 6))
    assert traffic.sent == {"DirectRecordBatches": 1, "Head": 1}
    assert traffic.direct_records == 3
    assert traffic.direct_bytes >= 6


def test_what_is_refused_is_counted_by_reason() -> None:
    decoder = BulkDecoder()
    traffic = MeshTraffic("store S", decoder)
    assert traffic.admitted(EVERYBODY, [b"no message"]) is None
    assert traffic.admitted(NOBODY, encode(Head("t", "p", 6))) is None
    assert not traffic.admits_records(NOBODY, BATCH)
    assert traffic.records_received == 0
    assert traffic.admitted(EVERYBODY, encode(Head("t", "p", 6))) == Head("t", "p", 6)
    decoder.invalid_count = 2
    towers, security = SimpleNamespace(invalid_count=4), SimpleNamespace(refused_beacons=5)
    peers = SimpleNamespace(invalid_count=3, towers=towers, security=security)
    refused = traffic.refused(cast("Any", peers))
    assert refused == {"message": 1, "records": 2, "beacon": 3, "tower": 4, "forbidden": 7}


def test_each_reason_is_said_at_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused, counts = RefusedFrames("store S"), dict.fromkeys(REASONS, 0)

    def said(now: float) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "dafka.mesh"):
            refused.report(now, counts)
        return [each.getMessage() for each in caplog.records]

    assert said(1_000.0) == []
    assert not refused.is_due(1_000.0 + LOOK_S / 2)
    assert refused.is_due(1_000.0 + LOOK_S)
    counts["message"], counts["beacon"] = 3, 1
    refused.note("message", "the version is not 1")
    first = said(1_001.0)
    assert len(first) == 2
    assert "3 frames refused, reason message (the last one: the version is not 1)" in first[0]
    assert "store S: 1 frames refused, reason beacon;" in first[1]
    counts["message"] = 10_000
    assert said(1_001.0 + SAY_AGAIN_S / 2) == []
    (again,) = said(1_001.0 + SAY_AGAIN_S)
    assert "9997 frames refused, reason message" in again
    assert said(1_001.0 + 3 * SAY_AGAIN_S) == []  # none has come since
