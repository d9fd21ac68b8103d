"""Options as programs write them, and as Spark takes them."""

from __future__ import annotations

from dafka_spark.frames import spark_options
from dafka_spark.options import SourceOptions


def test_values_become_texts() -> None:
    texts = spark_options(
        {
            "starting_offsets": {"t": {"A": 3}},
            "maxOffsetsPerTrigger": 7,
            "fail_on_data_loss": False,
            "stores": ["grpc://a:1", "grpc://b:2"],
            "subscribe": ("a,b", "c\n"),
            "query_name": None,
        }
    )
    assert texts == {
        "startingOffsets": '{"t": {"A": 3}}',
        "maxOffsetsPerTrigger": "7",
        "failOnDataLoss": "false",
        "stores": "grpc://a:1,grpc://b:2",
        "subscribe": r"a\x2cb,c\x0a",
    }
    assert SourceOptions.of({"subscribe": texts["subscribe"]}).subscribe == ("a,b", "c\n")
