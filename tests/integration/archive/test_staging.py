"""Staged files belong to one writer while it lives."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from dafka_core.archive import manifest as manifest_module
from dafka_core.archive.manifest import ArchivedFile, ArchiveError, Manifest, Staging, recover
from dafka_core.system.files import make_directory
from tests.integration.archive.records import A, archived, offsets_in_files


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest(tmp_path, "flights")


def file(of: Staging) -> ArchivedFile:
    return ArchivedFile("P", 0, 5, "2026-01-31", 1, None, None, of.id)


def stage(of: Staging) -> None:
    made = of.directory / "open-0"
    made.write_text("x")
    of.add([(made, file(of))])


def test_a_power_cut_while_a_file_is_published_leaves_one_of_its_names(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without a journal may keep either directory's change, or both."""
    real = os.fsync
    seen: list[tuple[bool, bool]] = []

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("day="):
            there = manifest_module.path_of(manifest, file(staged)).exists()
            seen.append((there, manifest_module.staged_path(manifest, file(staged)).exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with Staging(manifest) as staged:
        stage(staged)
        assert manifest.commit([file(staged)])
    assert seen[-1] == (True, True)
    assert not staged.directory.exists()


def test_a_file_of_a_removed_manifest_takes_the_place_of_no_other(manifest: Manifest) -> None:
    """The store would delete the only copy of the archived records."""
    path = manifest_module.path_of(manifest, ArchivedFile("P", 0, 5, "2026-01-31", 1, 0, 0, "0"))
    make_directory(path.parent)
    path.write_text("other")
    staging = Staging(manifest)
    staging.__enter__()
    stage(staging)
    assert manifest.commit([file(staging)])
    with pytest.raises(ArchiveError, match="has other records"):
        staging.__exit__(None)
    with pytest.raises(ArchiveError, match=f"{path} has other records"):
        recover(Manifest(manifest.directory, "flights"))
    assert path.read_text() == "other"
    path.rename(manifest.directory / "moved")
    recover(Manifest(manifest.directory, "flights"))
    assert path.read_text() == "x"


@pytest.mark.parametrize("over_nfs", [False, True])
def test_a_living_writer_s_files_are_left_alone(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, over_nfs: bool
) -> None:
    """Over NFS a lock of a directory is known to its own machine alone."""
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if not (over_nfs and stat.S_ISDIR(os.fstat(descriptor).st_mode)):
            real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with Staging(manifest) as staged:
        stage(staged)
        recover(Manifest(manifest.directory, "flights"))
        assert manifest_module.staged_path(manifest, file(staged)).exists()
    assert not any((manifest.commits / "staged").iterdir())


def test_what_nfs_does_not_show_yet_is_not_removed(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer is killed after its commit, and another machine has an older list of commits."""
    staged = Staging(manifest)
    staged.__enter__()
    stage(staged)
    assert manifest.commit([file(staged)])
    staged._locks.close()
    with monkeypatch.context() as older:
        older.setattr(Manifest, "refresh", lambda _: False)
        recover(Manifest(manifest.directory, "flights"))
    recover(Manifest(manifest.directory, "flights"))
    assert manifest_module.path_of(manifest, file(staged)).read_text() == "x"
    assert not staged.directory.exists()


def test_after_an_error_what_is_committed_is_there(manifest: Manifest) -> None:
    staged = Staging(manifest)
    with suppress(ZeroDivisionError), staged:
        stage(staged)
        Manifest(manifest.directory, "flights").commit([file(staged)])  # the answer was lost
        raise ZeroDivisionError
    assert manifest_module.path_of(manifest, file(staged)).read_text() == "x"


def test_a_directory_that_another_writer_took_for_a_dead_one_s(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock: list[int] = []

    def make(path: Path, below: Path) -> None:
        make_directory(path, below=below)
        if not lock:
            lock.append(os.open(path, os.O_RDONLY))
            fcntl.flock(lock[0], fcntl.LOCK_EX)

    monkeypatch.setattr(manifest_module, "make_directory", make)
    with Staging(manifest) as staged:
        assert staged.directory.is_dir()
    os.close(lock[0])
    recover(manifest)
    assert not any(staged.directory.parent.iterdir())


def test_a_directory_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archived(tmp_path, A, 30)

    def mkdir(path: Path, *_: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)  # root may write anywhere
    with pytest.raises(ArchiveError, match="it cannot be written to: Read-only file system"):
        archived(tmp_path, A, 60)
    assert offsets_in_files(tmp_path, A) == list(range(30))
