"""Options as programs write them, and as Spark takes them."""

from __future__ import annotations

from dafka_spark.frames import option_texts
from dafka_spark.options import SourceOptions


def test_names_and_values_become_what_spark_takes() -> None:
    given = option_texts(
        {
            "starting_offsets": {"t": {"A" * 32: 3}},
            "maxOffsetsPerTrigger": 7,
            "fail_on_data_loss": False,
            "stores": ["grpc://a:1", "grpc://b:2"],
            "subscribe": ("a,b", "c\n"),
            "query_name": None,
            "tower": "h:1:2",
        }
    )
    assert given == {
        "startingOffsets": '{"t": {"' + "A" * 32 + '": 3}}',
        "maxOffsetsPerTrigger": "7",
        "failOnDataLoss": "false",
        "stores": "grpc://a:1,grpc://b:2",
        "subscribe": r"a\x2cb,c\x0a",
        "tower": "h:1:2",
    }
    del given["startingOffsets"]
    assert SourceOptions.of(given).subscribe == ("a,b", "c\n")
