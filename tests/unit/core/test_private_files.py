"""Files that are their owner's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.private_files import OWNERS_ALONE, mode_within, others_can_read


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
