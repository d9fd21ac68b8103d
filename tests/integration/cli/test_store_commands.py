"""``dafka store`` and what it does with a directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.integration.cli.processes import Dafka, run, sentence


def test_a_copy_is_refused_until_it_is_restored(lone_tower: str, tmp_path: Path) -> None:
    directory, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    with Dafka("store", "--dir", directory, "--tower", lone_tower) as original:
        address = original.ready()["address"]
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.sock"))
        refused = run("store", "--dir", copy, "--tower", lone_tower)
        assert refused.returncode == 1
        assert f"copy of those of store {address}" in sentence(refused)
        restored = run("store", "restore", copy)
        assert restored.returncode == 0
        with Dafka("store", "--dir", copy, "--tower", lone_tower) as second:
            own = second.ready()["address"]
        assert own != address
        assert restored.stderr.decode() == f"{copy} is store {own} from now on\n"
        running = run("store", "restore", directory)
        assert running.returncode == 1
        assert "has it open for writing" in sentence(running)


def test_there_is_nothing_to_restore_in_an_empty_directory(tmp_path: Path) -> None:
    refused = run("store", "restore", str(tmp_path))
    assert refused.returncode == 1
    assert "there is no store here" in sentence(refused)
