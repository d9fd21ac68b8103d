"""Files that survive a power cut."""

import ast
import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

import dafka_console
import dafka_core
import dafka_kafka
import dafka_spark
from dafka_core.system.files import (
    OWNERS_ALONE,
    make_directory,
    mode_within,
    move,
    open_new,
    others_can_read,
    replace_file,
)

PACKAGES = [
    Path(str(each.__file__)).parent
    for each in (dafka_console, dafka_core, dafka_kafka, dafka_spark)
]
NAMES = ("rename", "renames", "hardlink_to", "fsync", "mkdir", "makedirs")
NO_PATHS = ("control",)
"""Objects with a method ``replace`` of their own."""


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence"
    replace_file(path, b"first", 0o644)
    replace_file(path, b"second", 0o600)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    synced: list[int] = []

    def fails(descriptor: int) -> None:
        synced.append(descriptor)
        raise OSError(errno.EIO, "no disk")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no disk"):
        replace_file(path, b"third", 0o600)
    assert len(synced) == 1
    assert path.read_bytes() == b"second"
    assert [each.name for each in tmp_path.iterdir()] == ["evidence"]


def test_names_in_a_directory_that_cannot_be_read_are_synced_with_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence"
    real, synced = os.open, []

    def refused(at: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(at) == tmp_path:  # as one of mode 0300 refuses it to all but root
            raise PermissionError(errno.EACCES, "not to be read")
        return real(at, flags, mode)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os, "sync", lambda: synced.append(path.read_bytes()))
    replace_file(path, b"second", 0o600)
    assert synced == [b"second"]


@pytest.mark.parametrize(
    ("code", "is_raised"), [(errno.EINVAL, False), (errno.EOPNOTSUPP, False), (errno.EIO, True)]
)
def test_a_file_system_that_syncs_no_directory_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_raised: bool
) -> None:
    path = tmp_path / "evidence"
    real = os.fsync

    def fails(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, "of the directory")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    raised = pytest.raises(OSError, match="of the directory")
    with raised if is_raised else contextlib.nullcontext():
        replace_file(path, b"first", 0o600)
    assert path.read_bytes() == b"first"


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "evidence"

    def write() -> None:
        with open_new(path, replaces=False) as file:
            file.write(b"second")
            path.write_bytes(b"first")

    with pytest.raises(FileExistsError, match="evidence"):
        write()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [
        ("evidence", b"first")
    ]


def test_a_file_has_its_first_name_until_the_other_one_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    made, path = tmp_path / "a" / "made", tmp_path / "name"
    made.write_bytes(b"x")
    real, seen = os.fsync, []

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path:
            seen.append((made.exists(), path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    move((made, path), replaces=False)
    assert seen == [(True, True)]
    assert not made.exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_system_without_links_gets_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    made, path = tmp_path / "made", tmp_path / "evidence"
    made.write_bytes(b"second")

    def refused(source: Path, target: Path) -> None:
        if is_there:
            path.write_bytes(b"first")
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(FileExistsError) if is_there else contextlib.nullcontext():
        move((made, path), replaces=False)
    assert path.read_bytes() == (b"first" if is_there else b"second")
    assert made.exists() == is_there


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("a/" + "x" * 300, "File name too long"),
    ],
)
def test_a_directory_that_cannot_be_made(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=why):
        make_directory(tmp_path / name)


def test_nothing_is_made_above_a_directory_that_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_directory(tmp_path / "disk" / "a" / "b", below=tmp_path / "disk")
    assert [*tmp_path.iterdir()] == []


def test_another_users_directory_above_need_not_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not sync all disks for a parent that is not readable (systemd's DynamicUser)."""
    above = tmp_path / "private"
    (above / "store").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: path != above)
    monkeypatch.setattr(os, "sync", lambda: pytest.fail("all disks are synced"))
    make_directory(above / "store")


def test_only_one_module_renames_syncs_and_makes_directories() -> None:
    found = {
        (path.name, ast.unparse(node))
        for name in PACKAGES
        for path in Path(name).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if _is_of_files(node, ast.unparse(node.func.value), node.func.attr)
    }
    elsewhere = {call for call in found if call[0] != "files.py"}
    # In /tmp, for files that mean nothing after the machine has started again.
    assert elsewhere == {("cluster_reader.py", "directory.mkdir(448, exist_ok=True)")}
    assert {"os.fsync(descriptor)", "made.replace(path)"} <= {call for _, call in found}


def _is_of_files(call: ast.Call, receiver: str, name: str) -> bool:
    """Return whether a call is of a path, or of modules ``os`` and ``shutil``."""
    if name == "replace":  # as strings and settings have it, too
        is_one = len(call.args) == 1 and not call.keywords
        return receiver == "os" or (is_one and receiver not in NO_PATHS)
    return name in NAMES or (receiver, name) == ("shutil", "move")


@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)]
)
def test_who_can_read_a_file(tmp_path: Path, mode: int, is_open: bool) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    path.chmod(mode)
    assert others_can_read(path.stat()) is is_open


@pytest.mark.parametrize(
    ("mode", "expected"), [(OWNERS_ALONE, 0o600), (0o750, 0o640), (0o755, 0o644)]
)
def test_a_file_is_for_those_whom_its_directory_lets_in(
    tmp_path: Path, mode: int, expected: int
) -> None:
    tmp_path.chmod(mode)
    assert mode_within(tmp_path) == expected
