"""The source's part of a streaming query's progress report."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.model.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import progress_publisher
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from dafka_spark.source.progress_publisher import described
from dafka_spark.source.read_limit import Sizes, Waiting
from tests.integration.cluster.stores import HeardOf, Serve

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")


def stream_of(source: HeardOf) -> DafkaMicroBatchStream:
    options = SourceOptions.of({"subscribe": "t", "startingoffsets": "earliest"})
    return DafkaMicroBatchStream(full(), options, source.connect)


def lag(stream: DafkaMicroBatchStream) -> dict[str, Any]:
    report = stream.reportLatestOffset()
    assert report is not None
    found: dict[str, Any] = report["lag"]
    return found


def test_lag_counts_from_the_end_of_the_batch_as_in_sparks_kafka_source(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 30, size_bytes=100)
    store.add(B, 10, size_bytes=100)
    stream = stream_of(HeardOf([store]))
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    found = lag(stream)
    assert 100 * 20 <= found.pop("estimatedTotalBytesBehindLatest") < 120 * 20
    assert found == {
        "minOffsetsBehindLatest": 4,
        "maxOffsetsBehindLatest": 16,
        "avgOffsetsBehindLatest": 10.0,
    }
    end = stream.latestOffset(end, ReadMaxRows(20))
    assert lag(stream) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 0,
        "avgOffsetsBehindLatest": 0.0,
        "estimatedTotalBytesBehindLatest": 0,
    }
    assert stream.latestOffset(end, ReadMaxRows(20)) == end
    assert lag(stream)["maxOffsetsBehindLatest"] == 0


def test_sizes_are_cached_and_may_be_unknown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    source = HeardOf((), ["C node"])
    source.add(A, 30)
    stream = stream_of(source)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    assert lag(stream)["estimatedTotalBytesBehindLatest"] is None
    asked: list[Waiting] = []

    def sizes(some: Waiting) -> Sizes:
        asked.append(some)
        return {A: [5.0, 7.0]}

    measured = progress_publisher.ReportedLag()
    for _ in range(3):
        found = measured.of({A: 4, B: 0}, sizes)
        assert found["estimatedTotalBytesBehindLatest"] == 24
    assert asked == [{A: 4}]
    monkeypatch.setattr(progress_publisher, "SIZES_S", 0)
    measured.of({A: 4}, sizes)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "b,a"}, "dafka: a, b at h:1:2"),
        ({"subscribe": "a,b,c,d,e,f,g"}, "dafka: a, b, c, d, e and 2 more at h:1:2"),
        ({"subscribePattern": "t.*"}, "dafka: pattern t.* at h:1:2"),
        ({"assign": '{"t": ["A", "B"]}'}, "dafka: t at h:1:2"),
        ({"subscribe": r"\x0a", "stores": "grpc://s:3"}, r"dafka: \x0a at grpc://s:3"),
    ],
)
def test_a_description_names_topics_and_cluster(given: dict[str, str], text: str) -> None:
    assert described(SourceOptions.of({"tower": "h:1:2", **given})) == text
