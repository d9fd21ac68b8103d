"""What a node has received and sent is counted without looking at what it is about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dafka_core.nodes.mesh_traffic import MeshTraffic
from dafka_core.permissions import EVERYBODY, NOBODY
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.codec import encode
from dafka_core.protocol.messages import DirectRecordBatches, Head
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.records import RecordBatch, TopicPartition

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
