"""Files that a command reports as written survive a power cut at that moment."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core import Producer, Store
from dafka_core.storage import Log
from tests.integration.cli.processes import PATIENCE_S, run
from tests.integration.storage.processes import put
from tests.synced_disk import SyncedDisk, run_watched
from tests.unit.queries.test_checkpoint import checkpoint


@pytest.fixture(scope="module")
def source(tower: str) -> str:
    """A tower of a cluster with topic ``kept``."""
    with Producer("kept", tower=tower) as producer:
        producer.publish_many([b"%d" % number for number in range(100)])
        producer.flush(PATIENCE_S)
    return tower


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("is_there", [False, True])
def test_copies(source: str, tmp_path: Path, suffix: str, is_there: bool) -> None:
    path = tmp_path / f"x.{suffix}"
    if is_there:
        path.write_text("previous")
    more = ["--overwrite"] if is_there else []
    said = run_watched(tmp_path, "copy", "kept", str(path), *more, "--tower", source)
    assert "100 records copied" in said
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_archives(source: str, tmp_path: Path) -> None:
    words = ("archive", "kept", "--dir", str(tmp_path / "a"), "--before", "now")
    assert "100" in run_watched(tmp_path, *words, "--tower", source)
    files = [*(tmp_path / "a").rglob("*.parquet")]
    assert len(files) == 1


@pytest.mark.nightly
def test_bundles(tmp_path: Path) -> None:
    path = str(tmp_path / "b.tar.gz")
    at = ("--tower", "127.0.0.1:1:2", "--tower-timeout-s", "0.2", "--timeout-s", "0.5")
    assert "check its contents" in run_watched(tmp_path, "bundle", path, *at)


def test_backups_and_restored_stores(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        put(log, 300)
    run("store", "restore", str(tmp_path / "store"))
    backup, restored = str(tmp_path / "a" / "b" / "c"), str(tmp_path / "d" / "e" / "f")
    said = run_watched(tmp_path, "store", "backup", str(tmp_path / "store"), backup)
    assert "is a backup of store" in said
    said = run_watched(tmp_path, "store", "restore", restored, "--from", backup)
    assert "is now store" in said
    links = str(tmp_path / "links")
    for _ in range(2):
        run_watched(tmp_path, "store", "verify", restored, "--save", links)


def test_keys_tokens_and_users(tmp_path: Path) -> None:
    keys, users = str(tmp_path / "a" / "keys"), str(tmp_path / "users")
    run_watched(tmp_path, "keys", "new", "one", "--role", "store", "--keys", keys)
    run_watched(tmp_path, "keys", "renew", "one", "--keys", keys)
    run_watched(tmp_path, "keys", "token", str(tmp_path / "token"))
    for _ in range(2):
        run_watched(tmp_path, "kafka-user", "add", "u", "--kafka-users", users, given=b"word\n")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "a/keys").iterdir()}
    assert modes == {"one.key": 0o666 & ~_umask(), "one.key_secret": 0o600}


def test_notebooks(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    run_watched(tmp_path, "notebooks", str(directory))
    found = {each.name: each.read_bytes() for each in directory.iterdir()}
    for name in found:
        (directory / name).write_text("changed")
    run_watched(tmp_path, "notebooks", str(directory), "--force")
    assert {each.name: each.read_bytes() for each in directory.iterdir()} == found


def test_checkpoints(tmp_path: Path) -> None:
    one = str(checkpoint(tmp_path / "one"))
    run_watched(tmp_path, "checkpoint", "copy", one, str(tmp_path / "a" / "copy"))
    run_watched(tmp_path, "checkpoint", "fork", one, str(tmp_path / "a" / "fork"))
    run_watched(tmp_path, "checkpoint", "rewind", one, "--to-batch", "0", "--stopped")
    run_watched(tmp_path, "checkpoint", "reset", one, "--stopped")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncedDisk]:
    yield SyncedDisk(tmp_path, monkeypatch.setattr)
    monkeypatch.undo()


def test_all_new_levels_above_a_store(tmp_path: Path, disk: SyncedDisk) -> None:
    directory = tmp_path / "a" / "b" / "c" / "store"
    with Log(directory) as log:
        put(log, 3)
        assert disk.lost() == []
    # A start that was killed before its first sync has left a level of it.
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.sync()
    (tmp_path / "a" / "b" / "c").mkdir()
    assert disk.lost() == [str(tmp_path / "a" / "b" / "c")]
    with Log(directory):
        assert disk.lost() == []


def test_all_that_a_new_store_makes(tmp_path: Path, disk: SyncedDisk, lone_tower: str) -> None:
    with Store(tmp_path / "a" / "b" / "store", tower=lone_tower):
        assert disk.lost() == []
    assert {"address", "origin", "session"} <= {each.name for each in tmp_path.glob("a/b/store/*")}


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
