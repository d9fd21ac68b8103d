"""Files appear when they are complete."""

import csv
from pathlib import Path

import pytest

from dafka_core.cli.copy_command import CSV, JSON, PARQUET, Place, new_file
from dafka_core.cli.produce_command import CsvRecords
from dafka_core.errors import ConfigError
from dafka_core.model.records import RecordBatch, TopicPartition

BATCH = RecordBatch.of(TopicPartition("t", "P"), 0, [b"a"])


def fail(path: Path) -> None:
    with new_file(Place("json", str(path)), overwrite=False) as write:
        write(BATCH)
        raise RuntimeError


def test_a_file_that_is_not_finished_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(RuntimeError):
        fail(path)
    assert [*tmp_path.iterdir()] == []
    with new_file(Place("json", str(path)), overwrite=False) as write:
        write(BATCH)
    assert path.read_text(encoding="utf-8").count("\n") == 1


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        fail(tmp_path / "none" / "x.jsonl")


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
    with pytest.raises(ConfigError, match=r"its suffix is unknown; did you mean '\.parquet'"):
        Place.parse("file:x.parqet")


@pytest.mark.parametrize("text", ["out.xlsx", "o.TSV", "o.csv.gz", "dir/flights", "-", "o.parqet"])
def test_what_looks_like_a_file_is_no_topic(text: str) -> None:
    with pytest.raises(ConfigError, match=r"looks like a file, .*; for a topic use topic:NAME"):
        Place.parse(text)


def test_rows_of_csv_keep_every_kind_of_newline(tmp_path: Path) -> None:
    values = [b"a\r", b"\r", b"a\rb", b"a\r\nb\n", b'a"b', b"a,b", b"", b" a"]
    path = tmp_path / "x.csv"
    with new_file(Place(CSV, str(path)), overwrite=False) as write:
        write(RecordBatch.of(BATCH.tp, 0, values))
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["value"].encode() for row in csv.DictReader(file)] == values
    (found, _, _), why = CsvRecords(None, (), None).decode(path.read_bytes().split(b"\n")[:-1])
    assert (found, why) == (values, "")
