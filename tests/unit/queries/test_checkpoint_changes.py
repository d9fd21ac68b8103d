"""Checkpoints that are rewound, and reset."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.queries import checkpoint_changes
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.queries.checkpoint_changes import last_until, reset, rewind
from tests.unit.queries.checkpoints import (
    ENDS,
    FOREIGN,
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
    before = time.time() - checkpoint_changes.QUIET_S - 1
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
