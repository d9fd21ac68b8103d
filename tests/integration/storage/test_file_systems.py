"""The file systems that a store may use."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dafka_core.storage.open_environment import NOT_LOCAL, not_local
from tests.integration.storage import fuse
from tests.integration.storage.containers import can_contain, contained
from tests.integration.storage.processes import started

OPENED = """
import sys

from dafka_core.storage import Log

Log(sys.argv[1]).close()
print("opened")
"""


def test_a_directory_of_this_machine_is_local(tmp_path: Path) -> None:
    assert not_local(tmp_path) is None
    assert not_local("/dev/shm") is None
    assert not_local(tmp_path / "missing") is None


def test_the_types_are_those_that_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual call, with the type of a file system that is mounted everywhere."""
    monkeypatch.setitem(NOT_LOCAL, 0x9FA0, "the system's processes")
    assert not_local("/proc") == "the system's processes"
    assert not_local("/dev") is None


@pytest.mark.parametrize(
    "kind", [0x6969, 0xFF534D42, 0xFE534D42, 0x01021997, 0xBEEFDEAD, 0x65735546]
)
def test_those_of_other_machines_have_names(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        """Return the type with the sign of a 32-bit long."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def statfs(self, _path: bytes, found: Any) -> int:
            ctypes.c_long.from_buffer(found).value = ctypes.c_int32(kind).value
            return 0

    monkeypatch.setattr(ctypes, "CDLL", System)
    assert not_local("anywhere") == NOT_LOCAL[kind]


def test_a_store_refuses_a_real_file_system_of_a_program(tmp_path: Path) -> None:
    """Where none can be mounted, the program opens the directory as it is."""
    if can_contain():
        command = contained([sys.executable, "-m", fuse.__name__, str(tmp_path)])
        says = f"store at {tmp_path}: it is on FUSE, where .* give the store a directory on a local"
    else:
        command = [sys.executable, "-c", OPENED, str(tmp_path)]
        says = "opened"
    with started(command) as process:
        assert process.stdout is not None
        assert re.match(says, process.stdout.readline())
        assert process.wait() == 0
    assert (tmp_path / "data.mdb").exists() != can_contain()
