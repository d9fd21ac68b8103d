"""Topics and files as places that records are copied from and to."""

from __future__ import annotations

import pytest

from dafka_core.cli.places import CSV, JSON, PARQUET, Place
from dafka_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("orders", ("", "orders")),
        ("dir/x.parquet", (PARQUET, "dir/x.parquet")),
        ("file:x.CSV", (CSV, "x.CSV")),
        ("x.ndjson", (JSON, "x.ndjson")),
        ("topic:x.csv", ("", "x.csv")),
        ("a:b", ("", "a:b")),
        ("plant.temperature.c", ("", "plant.temperature.c")),
        ("topic:a/b.txt", ("", "a/b.txt")),
        ("topic:-", ("", "-")),
    ],
)
def test_a_file_is_told_by_its_suffix(text: str, place: tuple[str, str]) -> None:
    assert Place.parse(text) == place


def test_a_file_without_a_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"its suffix says no form; did you mean '\.parquet'"):
        Place.parse("file:x.parqet")


@pytest.mark.parametrize("text", ["out.xlsx", "o.TSV", "o.csv.gz", "dir/flights", "-", "o.parqet"])
def test_what_looks_like_a_file_is_no_topic(text: str) -> None:
    with pytest.raises(ConfigError, match=r"looks like a file, .*; topic:NAME is a topic"):
        Place.parse(text)
