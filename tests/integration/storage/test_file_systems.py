"""Which file systems a store may use."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from dafka_core.storage.file_systems import NOT_LOCAL, not_local


def test_a_directory_of_this_machine_is_local(tmp_path: Path) -> None:
    assert not_local(tmp_path) is None
    assert not_local("/dev/shm") is None
    assert not_local(tmp_path / "missing") is None


def test_the_types_are_those_that_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call as for others, with the type of one that is mounted everywhere."""
    monkeypatch.setitem(NOT_LOCAL, 0x9FA0, "the system's processes")
    assert not_local("/proc") == "the system's processes"
    assert not_local("/dev") is None


@pytest.mark.parametrize("kind", [0x6969, 0xFF534D42, 0x65735546])
def test_those_of_other_machines_have_names(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        """Tells the type with the sign that a long of 32 bits gives it."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def statfs(self, _path: bytes, found: Any) -> int:
            ctypes.c_long.from_buffer(found).value = ctypes.c_int32(kind).value
            return 0

    monkeypatch.setattr(ctypes, "CDLL", System)
    assert not_local("anywhere") == NOT_LOCAL[kind]
