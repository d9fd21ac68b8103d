"""Checkpoints that are rewound, and reset."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.queries import checkpoint as checkpoint_module
from dafka_core.queries.checkpoint import Checkpoint, copied, fork, last_until, reset, rewind
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

DELTAS = {f"0/{part}/{version}.delta": "x" for part in (0, 1) for version in (1, 2, 3)}


def read(directory: Path) -> Checkpoint:
    return Checkpoint.read(str(directory))


def of_batches(numbers: range) -> set[str]:
    """The names of what these batches have, with checksums."""
    names = {f"{name}/{n}" for name in ("offsets", "commits") for n in numbers}
    return names | {name.replace("/", "/.") + ".crc" for name in names}


def test_a_rewound_query_goes_on_behind_the_batch(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c")
    before = files(own)
    backup = rewind(read(own), 0, is_stopped=True)
    assert files(own) == before - of_batches(range(1, 3))
    assert (read(own).next_batch, read(own).is_unfinished) == (1, False)
    assert files(backup) == before
    assert backup.name.startswith("c.backup-2")
    assert backup.parent == tmp_path
    assert read(backup).last.own_ends == {"0": ENDS[2]}


def test_what_was_unfinished_is_gone_too(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c", committed=2)
    with pytest.raises(ConfigError, match="no committed batch 2: it is unfinished"):
        rewind(read(own), 2, is_stopped=True)
    rewind(read(own), 1, is_stopped=True)
    assert (read(own).next_batch, read(own).is_unfinished) == (2, False)


def test_state_goes_back_with_the_batches(tmp_path: Path) -> None:
    """A snapshot of later that is left would be taken for one of the new batches."""
    more = {"0/0/3.snapshot": "x", "1/0/left/3_ab-cd.zip": "x", "1/0/left/2_ef-01.zip": "x"}
    noted = {"1/_metadata/v2/0": "x", "1/_metadata/v2/2": "x", "1/0/left/SSTs/9.sst": "x"}
    own = checkpoint(tmp_path / "c", state=DELTAS | more | noted)
    rewind(read(own), 1, is_stopped=True)
    left = {name.removeprefix("state/") for name in files(own) if name.startswith("state/")}
    kept = {name for name in {**DELTAS, **more, **noted} if "3" not in name} - {"1/_metadata/v2/2"}
    sums = {str(Path(name).with_name(f".{Path(name).name}.crc")) for name in kept}
    assert left == kept | sums


@pytest.mark.parametrize(
    ("state", "batch", "is_there"),
    [
        (["3.delta", "2.snapshot"], 1, True),
        (["3.delta", "2.delta", "1.delta"], 0, True),
        (["3.delta", "2.delta"], 1, False),
        (["3.zip", "2.zip"], 1, True),
        (["3.zip", "2.zip"], 0, False),
        (["3.zip", "2.changelog", "1.zip"], 1, True),
        (["3.delta", "1.snapshot"], 1, False),
    ],
)
def test_state_must_be_there_as_it_was(
    tmp_path: Path, state: list[str], batch: int, is_there: bool
) -> None:
    own = checkpoint(tmp_path / "c", state={f"0/0/{name}": "x" for name in state})
    before = files(own)
    if is_there:
        rewind(read(own), batch, is_stopped=True)
    else:
        with pytest.raises(ConfigError, match=f"no state any more as of batch {batch}, at .*0/0"):
            rewind(read(own), batch, is_stopped=True)
        assert files(own) == before
        assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_a_query_that_may_run_is_refused(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"has changed \d+ s ago: its query may run"):
        rewind(read(own), 0)
    with pytest.raises(ConfigError, match=r"has changed \d+ s ago: its query may run"):
        reset(read(own))
    ahead = time.time() + 3_600
    for name in ("offsets", "commits"):
        os.utime(own / name, (ahead, ahead))
    with pytest.raises(ConfigError, match="has changed 0 s ago"):
        rewind(read(own), 0)
    before = time.time() - checkpoint_module.QUIET_S - 1
    for name in ("offsets", "commits"):
        os.utime(own / name, (before, before))
    rewind(read(own), 0)


def test_other_sources_cannot_be_rewound(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c", [*ENDS[:2]])
    ours = offsets(ENDS[0])
    write(own / "offsets" / "0", f"{ours}\n{FOREIGN}")
    with pytest.raises(ConfigError, match="of a query with other sources, too"):
        rewind(read(own), 0, is_stopped=True)


def test_what_is_not_there_is_no_target(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c", first=5)
    with pytest.raises(ConfigError, match="has no batch 4, but batches 5 to 7"):
        rewind(read(own), 4, is_stopped=True)


def test_a_disk_that_refuses_is_said_and_the_change_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = checkpoint(tmp_path / "c")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "offsets" and path.name == "1":
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(DafkaError, match="is rewound in part"):
            rewind(read(own), 0, is_stopped=True)
    assert read(own).planned == (0, 1)  # batch 1 would be run again
    assert read(own).is_unfinished
    rewind(read(own), 0, is_stopped=True)
    assert read(own).planned == (0,)
    assert len([*tmp_path.glob("c.backup-*")]) == 2


def test_the_last_batch_until_a_time(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c", committed=2))
    assert last_until(found, TIME_MS + 1_000) == 1
    assert last_until(found, TIME_MS + 999) == 0
    assert last_until(found, TIME_MS + 9_999) == 1  # batch 2 is not committed
    with pytest.raises(ConfigError, match="no committed batch from then or before"):
        last_until(found, TIME_MS - 1)


def test_a_query_that_is_reset_begins_anew(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c", state=DELTAS)
    before = files(own)
    backups = [reset(read(own), is_stopped=True)]
    assert files(own) == set()
    assert files(backups[0]) == before
    checkpoint(own)
    backups.append(reset(read(own), is_stopped=True))
    assert len({*backups}) == 2  # however soon after the first


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
    own, left = checkpoint_module._files, [*range(times)]
    looks = count()

    def look(directory: Path) -> set[Any]:
        if next(looks) % 2 and left:  # at the end of a copy
            write(found.path / "offsets" / str(3 + left.pop()), offsets(ENDS[-1]))
        return own(directory)

    monkeypatch.setattr(checkpoint_module, "_files", look)
    target = tmp_path / "copy"
    if times > 1:
        with pytest.raises(DafkaError, match=r"changes while it is copied: its query runs"):
            copied(found, str(target))
        assert {each.name for each in tmp_path.iterdir()} == {"c"}
    else:
        assert copied(found, str(target)).planned == (0, 1, 2, 3)
        assert files(target) == files(found.path)
