"""What the options of reading and writing have in common."""

from __future__ import annotations

from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.spark_options import sides, user_options


def test_there_are_two_sides_which_know_each_other() -> None:
    assert sides() == [SourceOptions, SinkOptions]


def test_a_tables_options_are_told_from_its_properties() -> None:
    given = {"owner": "me", "ab": "x", "option.ab": "x", "provider": "dafka", "pp": "q"}
    assert user_options(given) == {"ab": "x"}
    assert user_options({"ab": "x"}) == {"ab": "x"}
