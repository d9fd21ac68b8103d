"""What a store that cannot start leaves of a directory that it has made: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core import ConfigError, Store, StoreError, TowerNotFoundError
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import Log

NOBODY = "127.0.0.1:1:2"


def start_in_vain(directory: Path) -> None:
    with pytest.raises(TowerNotFoundError):
        Store(directory, tower=NOBODY, tower_timeout_s=0.1)


def test_a_new_directory_is_removed(tmp_path: Path) -> None:
    start_in_vain(tmp_path / "some" / "where")
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ConfigError, match="host"):
        Store(tmp_path / "new", host="203.0.113.1", tower=NOBODY)
    assert [*tmp_path.iterdir()] == []


def test_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    start_in_vain(tmp_path / "empty")
    start_in_vain(tmp_path / "empty" / "new")
    assert (tmp_path / "empty").is_dir()
    assert not (tmp_path / "empty" / "new").exists()
    with Log(tmp_path / "store") as log:
        log.append([RecordBatch.of(TopicPartition("t", "P"), 0, [b"kept"])])
    start_in_vain(tmp_path / "store")
    with Log(tmp_path / "store") as log:
        assert log.end(TopicPartition("t", "P")) == 1


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"it cannot be made \(File name too long\)"):
        Store(tmp_path / ("x" * 300), tower=NOBODY)
    for none in ("", "a\0b"):
        with pytest.raises(ConfigError, match=r"option 'directory' = .*: must name a directory"):
            Store(none, tower=NOBODY)
