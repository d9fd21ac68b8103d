"""Files that are there when they are complete, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.cli.copy_files import new_file
from dafka_core.cli.places import Place
from dafka_core.errors import ConfigError
from dafka_core.records import RecordBatch, TopicPartition

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
