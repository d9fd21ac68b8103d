"""Files that are their owner's alone."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from dafka_core.private_files import OWNERS_ALONE, mode_within, others_can_read, replace_file


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


def test_in_a_directory_that_cannot_be_read_a_file_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence"
    path.write_bytes(b"first")
    real = os.open

    def refused(at: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(at) == tmp_path:  # as one of mode 0300 refuses it to all but root
            raise PermissionError(errno.EACCES, "not to be read")
        return real(at, flags, mode)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError, match="not to be read"):
        replace_file(path, b"second", 0o600)
    monkeypatch.undo()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [
        ("evidence", b"first")
    ]


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
