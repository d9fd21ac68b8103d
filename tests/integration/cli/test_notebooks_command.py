"""``dafka notebooks``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.cli.processes import run, sentence

NAME = "explore_topic.ipynb"


def test_they_are_listed_and_copied_and_never_replaced_unasked(tmp_path: Path) -> None:
    listed = {
        json.loads(line)["notebook"] for line in run("notebooks", "--json").stdout.splitlines()
    }
    there = tmp_path / "new" / "here"
    assert run("notebooks", str(there)).returncode == 0
    assert {path.stem for path in there.iterdir()} == listed
    copied = (there / NAME).read_bytes()
    assert json.loads(copied)["nbformat"] == 4
    (there / NAME).write_text("mine")
    (there / "windows_and_late_data.ipynb").unlink()
    refused = run("notebooks", str(there))
    assert refused.returncode == 2
    assert f"{NAME}, " in sentence(refused)
    assert "--force" in sentence(refused)
    assert not (there / "windows_and_late_data.ipynb").exists()
    assert (there / NAME).read_text() == "mine"
    assert run("notebooks", str(there), "explore_topic", "--force").returncode == 0
    assert (there / NAME).read_bytes() == copied


def test_a_name_that_is_misspelt_or_no_place_is_told(tmp_path: Path) -> None:
    misspelt = run("notebooks", str(tmp_path / "x"), "explore_topc")
    assert "did you mean 'explore_topic'?" in sentence(misspelt)
    assert not (tmp_path / "x").exists()
    place = run("notebooks", "explore_topic")
    assert "'dafka notebooks . explore_topic' copies it" in sentence(place)
    (tmp_path / "file").touch()
    for name, why in (("file", "File exists"), ("x" * 300, "File name too long")):
        refused = run("notebooks", str(tmp_path / name))
        assert f"cannot be written to: {why}" in sentence(refused)
