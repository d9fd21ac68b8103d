"""A full disk ends no process, costs no record, and may have room again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dafka_core.storage import Log
from dafka_core.storage.open_environment import READERS_FILE
from tests.integration.storage import full_disk
from tests.integration.storage.containers import contained
from tests.integration.storage.processes import started

SCENARIOS = [
    full_disk.readers,
    full_disk.starting,
    full_disk.restarting,
    full_disk.writing,
    full_disk.merging,
]


@pytest.mark.parametrize("scenario", [each.__name__ for each in SCENARIOS])
def test_a_log_on_a_full_disk(tmp_path: Path, scenario: str) -> None:
    command = [sys.executable, "-m", full_disk.__name__, str(tmp_path), scenario]
    mount = f"mount -t tmpfs -o size={full_disk.MOUNTED_BYTES} tmpfs {tmp_path}"
    with started(contained(command, mount)) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "right\n"
        assert process.wait() == 0


def test_the_list_of_readers_has_its_place_on_the_disk(tmp_path: Path) -> None:
    """Also an earlier store's, with a reader table."""
    readers = tmp_path / READERS_FILE
    for _ in range(2):
        Log(tmp_path).close()
        found = readers.stat()
        assert found.st_blocks * 512 >= found.st_size > 1_024 * 64
        readers.unlink()
        with readers.open("wb") as file:
            file.truncate(found.st_size)
