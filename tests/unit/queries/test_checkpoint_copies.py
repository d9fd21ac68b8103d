"""Copies of checkpoints."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.queries import checkpoint_copies
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.queries.checkpoint_copies import copied, fork
from tests.unit.queries.checkpoints import ENDS, QUERY, checkpoint, files, offsets, write


@pytest.fixture
def found(tmp_path: Path) -> Checkpoint:
    return Checkpoint.read(str(checkpoint(tmp_path / "c", state={"0/0/1.delta": "x"})))


def test_a_copy_is_the_same_query(found: Checkpoint, tmp_path: Path) -> None:
    made = copied(found, str(tmp_path / "deep" / "copy"))
    assert (made.query_id, made.planned) == (QUERY, (0, 1, 2))
    assert files(made.path) == files(found.path)
    for name in files(found.path):
        assert (made.path / name).read_bytes() == (found.path / name).read_bytes()


def test_a_fork_is_a_query_of_its_own(found: Checkpoint, tmp_path: Path) -> None:
    made = [fork(found, str(tmp_path / name)) for name in "ab"]
    assert len({found.query_id, *(each.query_id for each in made)}) == 3
    for each in made:
        # A checksum of what the file was before would make it unreadable.
        assert files(found.path) - files(each.path) == {".metadata.crc"}
        assert files(each.path) <= files(found.path)
        assert each.last == found.last
    assert Checkpoint.read(str(found.path)).query_id == QUERY


def test_a_place_that_is_taken_is_refused(found: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="is there already"):
            copied(found, str(taken))
    for inside in (found.path, found.path / "new", found.path / "state"):
        with pytest.raises(ConfigError, match="is, or is in, the checkpoint"):
            copied(found, str(inside))
    with pytest.raises(ConfigError, match="is not on this machine"):
        fork(found, "hdfs://host/a")
    with pytest.raises(DafkaError, match="cannot be copied"):
        copied(found, str(tmp_path / "file" / "below"))
    (tmp_path / "empty").mkdir()
    assert copied(found, str(tmp_path / "empty")).query_id == QUERY


@pytest.mark.parametrize("times", [1, 9])
def test_a_copy_is_of_one_moment(
    found: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A query that runs deletes old files, and writes new ones, while they are copied."""
    own, left = checkpoint_copies._files, [*range(times)]
    looks = count()

    def look(directory: Path) -> set[Any]:
        if next(looks) % 2 and left:  # at the end of a copy
            write(found.path / "offsets" / str(3 + left.pop()), offsets(ENDS[-1]))
        return own(directory)

    monkeypatch.setattr(checkpoint_copies, "_files", look)
    target = tmp_path / "copy"
    if times > 1:
        with pytest.raises(DafkaError, match=r"changes while it is copied: its query runs"):
            copied(found, str(target))
        assert {each.name for each in tmp_path.iterdir()} == {"c"}
    else:
        assert copied(found, str(target)).planned == (0, 1, 2, 3)
        assert files(target) == files(found.path)
