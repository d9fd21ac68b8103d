"""``dafka store`` and what it does with a directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dafka_core.epochs import Epoch, EpochId
from dafka_core.log_entries import Met, SetAside
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.values import Values
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


def test_what_is_set_aside_is_listed_exported_and_deleted(tmp_path: Path) -> None:
    tp, old = TopicPartition("t", "P"), Epoch.first(EpochId(2, 7, 1))
    with Log(tmp_path) as log:
        log.append([RecordBatch(tp, 0, Values.of([b"a", b"b", b"c"]), epoch=old)])
        log.write([SetAside(tp, 1)])
        (aside,) = log.aside()
        refused = run("store", "aside", str(tmp_path))
        assert refused.returncode == 1
        assert "has it open for writing" in sentence(refused)
    listed = run("store", "aside", str(tmp_path), "--json")
    assert json.loads(listed.stdout) == {
        "id": aside.id,
        "topic": "t",
        "partition": "P",
        "start": 1,
        "end": 3,
        "bytes": aside.size_bytes,
    }
    exported = run("store", "aside", str(tmp_path), "--export", str(aside.id))
    records = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [(each["offset"], each["value"]) for each in records] == [(1, "b"), (2, "c")]
    assert run("store", "aside", str(tmp_path), "--discard", "999").returncode == 1
    assert run("store", "aside", str(tmp_path), "--discard", str(aside.id)).returncode == 0
    nothing = run("store", "aside", str(tmp_path))
    assert (nothing.stdout, nothing.stderr) == (b"", b"nothing is set aside\n")


def test_a_store_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.write([Met("B" * 32), Met("C" * 32)])
    assert run("store", "forget", str(tmp_path), "B" * 32).returncode == 0
    with Log(tmp_path) as log:
        assert log.met() == [Met("C" * 32)]
    refused = run("store", "forget", str(tmp_path), "B" * 32)
    assert refused.returncode == 1
    assert f"those it has met: {'C' * 32}" in sentence(refused)
