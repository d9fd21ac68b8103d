"""Checkpoints that are rewound, reset and copied."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.queries import checkpoint as checkpoint_module
from dafka_core.queries.checkpoint import Checkpoint, copied, last_until, reset, rewind
from tests.unit.queries.checkpoints import (
    ENDS,
    FOREIGN,
    QUERY,
    TIME_MS,
    checkpoint,
    files,
    offsets,
    write,
)

DELTAS = [f"0/{part}/{version}.delta" for part in (0, 1) for version in (1, 2, 3)]


def read(directory: Path) -> Checkpoint:
    return Checkpoint.read(str(directory))


def with_checksums(names: set[str]) -> set[str]:
    return names | {str(Path(name).with_name(f".{Path(name).name}.crc")) for name in names}


@pytest.mark.parametrize("committed", [2, 3])
def test_the_batches_after_the_last_one_are_removed(tmp_path: Path, committed: int) -> None:
    own = checkpoint(tmp_path / "c", committed=committed)
    before = files(own)
    backup = rewind(read(own), 0, is_stopped=True)
    removed = {f"{name}/{number}" for name in ("offsets", "commits") for number in (1, 2)}
    assert files(own) == before - with_checksums(removed)
    assert (read(own).next_batch, read(own).is_unfinished) == (1, False)
    assert (files(backup), backup.parent) == (before, tmp_path)
    assert backup.name.startswith("c.backup-2")


def test_state_is_rewound_with_the_batches(tmp_path: Path) -> None:
    """Spark would take a later snapshot for that of a new batch."""
    more = ["0/0/3.snapshot", "1/0/left/3_ab-cd.zip", "1/0/left/2_ef-01.zip"]
    more += ["1/_metadata/v2/0", "1/_metadata/v2/2", "1/0/left/SSTs/9.sst"]
    own = checkpoint(tmp_path / "c", state=[*DELTAS, *more])
    rewind(read(own), 1, is_stopped=True)
    kept = {name for name in (*DELTAS, *more) if "3" not in name} - {"1/_metadata/v2/2"}
    left = {name.removeprefix("state/") for name in files(own) if name.startswith("state/")}
    assert left == with_checksums(kept)


@pytest.mark.parametrize(
    ("state", "batch", "exists"),
    [
        (["3.delta", "2.snapshot"], 1, True),
        (["3.delta", "2.delta", "1.delta"], 0, True),
        (["3.delta", "2.delta"], 1, False),
        (["3.zip", "2.zip"], 1, True),
        (["3.zip", "2.zip"], 0, False),
        (["3.zip", "2.changelog", "1.zip"], 1, True),
        (["3.delta", "1.snapshot"], 1, False),
        (["2.snapshot", "2.delta"], 1, True),
        (["2.delta", "2.snapshot"], 1, True),
    ],
)
def test_the_state_after_the_batch_must_exist(
    tmp_path: Path, state: list[str], batch: int, exists: bool
) -> None:
    own = checkpoint(tmp_path / "c", state=[f"0/0/{name}" for name in state])
    before = files(own)
    if exists:
        rewind(read(own), batch, is_stopped=True)
        return
    with pytest.raises(ConfigError, match=f"no longer has the state after batch {batch}, in .*0/0"):
        rewind(read(own), batch, is_stopped=True)
    assert (files(own), [each.name for each in tmp_path.iterdir()]) == (before, ["c"])


def test_a_query_that_may_run_is_refused(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c")

    def age(seconds: float) -> None:
        for name in ("offsets", "commits"):
            os.utime(own / name, (time.time() - seconds, time.time() - seconds))

    for seconds, ago in ((5, r"\d+"), (-3_600, "0")):
        age(seconds)
        for change in (reset, lambda found: rewind(found, 0)):
            with pytest.raises(ConfigError, match=rf"changed {ago} s ago: its query may run"):
                change(read(own))
    age(checkpoint_module.QUIET_S + 1)
    rewind(read(own), 0)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (4, "has no batch 4, but batches 5 to 7"),
        (5, "sources of other formats"),
        (7, "no committed batch 7: the query will repeat it"),
    ],
)
def test_batches_to_which_a_query_is_not_rewound(tmp_path: Path, batch: int, error: str) -> None:
    own = checkpoint(tmp_path / "c", first=5, committed=2)
    write(own / "offsets" / "5", f"{offsets(ENDS[0])}\n{FOREIGN}")
    with pytest.raises(ConfigError, match=error):
        rewind(read(own), batch, is_stopped=True)


def test_a_rewind_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = checkpoint(tmp_path / "c")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "offsets" and path.name == "1":
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(DafkaError, match="is rewound only in part"):
            rewind(read(own), 0, is_stopped=True)
    assert (read(own).planned, read(own).is_unfinished) == ((0, 1), True)
    rewind(read(own), 0, is_stopped=True)
    assert read(own).planned == (0,)
    assert len([*tmp_path.glob("c.backup-*")]) == 2


def test_the_last_batch_until_a_time(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c", committed=2))
    times = {after_ms: last_until(found, TIME_MS + after_ms) for after_ms in (999, 1_000, 9_999)}
    assert times == {999: 0, 1_000: 1, 9_999: 1}  # batch 2 is not committed
    with pytest.raises(ConfigError, match="no committed batch that old"):
        last_until(found, TIME_MS - 1)


def test_a_reset_moves_all_to_a_backup(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c", state=DELTAS)
    before = files(own)
    first = reset(read(own), is_stopped=True)
    assert (files(own), files(first)) == (set(), before)
    assert reset(read(checkpoint(own)), is_stopped=True) != first  # even within a second


@pytest.fixture
def found(tmp_path: Path) -> Checkpoint:
    return read(checkpoint(tmp_path / "c", state=["0/0/1.delta"]))


def test_a_copy_is_the_same_query(found: Checkpoint, tmp_path: Path) -> None:
    made = copied(found, str(tmp_path / "deep" / "copy"))
    assert (made.query_id, made.planned) == (QUERY, (0, 1, 2))
    contents = [
        {name: (each.path / name).read_bytes() for name in files(each.path)}
        for each in (found, made)
    ]
    assert contents[0] == contents[1]


def test_a_fork_is_another_query(found: Checkpoint, tmp_path: Path) -> None:
    made = [copied(found, str(tmp_path / name), is_fork=True) for name in "ab"]
    assert len({found.query_id, *(each.query_id for each in made)}) == 3
    for each in made:
        # Spark would refuse the new file with the old checksum.
        assert files(found.path) - files(each.path) == {".metadata.crc"}
        assert each.last == found.last
    assert read(found.path).query_id == QUERY


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("taken", "exists; name a new directory"),
        ("taken/file", "exists; name a new directory"),
        ("taken/file/below", "cannot be copied"),
        ("c", "is, or is in, the checkpoint"),
        ("c/new", "is, or is in, the checkpoint"),
    ],
)
def test_a_copy_needs_a_new_directory(
    found: Checkpoint, tmp_path: Path, target: str, error: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(DafkaError, match=error):
        copied(found, str(tmp_path / target))
    with pytest.raises(ConfigError, match="is not on this machine"):
        copied(found, "hdfs://host/a")
    (tmp_path / "empty").mkdir()
    assert copied(found, str(tmp_path / "empty")).query_id == QUERY


@pytest.mark.parametrize("times", [1, 9])
def test_a_copy_is_of_one_moment(
    found: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A running query writes and deletes files while they are copied."""
    own, left, calls = checkpoint_module._files, [*range(times)], count()

    def changing(directory: Path) -> set[Any]:
        if next(calls) % 2 and left:  # at the end of a copy
            write(found.path / "offsets" / str(3 + left.pop()), offsets(ENDS[-1]))
        return own(directory)

    monkeypatch.setattr(checkpoint_module, "_files", changing)
    target = tmp_path / "copy"
    if times > 1:
        with pytest.raises(DafkaError, match="changes while it is copied: its query runs"):
            copied(found, str(target))
        assert {each.name for each in tmp_path.iterdir()} == {"c"}
    else:
        assert copied(found, str(target)).planned == (0, 1, 2, 3)
        assert files(target) == files(found.path)
