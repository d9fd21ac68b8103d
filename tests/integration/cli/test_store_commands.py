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
    done = run("store", "forget", str(tmp_path), "B" * 32, "--json")
    assert json.loads(done.stdout) == {"forgotten": "B" * 32}
    with Log(tmp_path) as log:
        assert log.met() == [Met("C" * 32)]
    refused = run("store", "forget", str(tmp_path), "B" * 32)
    assert refused.returncode == 1
    assert f"those that are: {'C' * 32}" in sentence(refused)


def test_stores_that_run_forget_one_that_is_gone(lone_tower: str, tmp_path: Path) -> None:
    gone, slip = "B" * 32, "B" * 31 + "C"
    with Log(tmp_path) as log:
        log.write([Met(gone, "tcp://10.0.0.7:1", 1_700_000_000_000_000)])
    with Dafka("store", "--dir", str(tmp_path), "--tower", lone_tower) as store:
        address = store.ready()["address"]
        named = f"store {gone} (tcp://10.0.0.7:1, last heard 2023-11-14 22:13:20 UTC) is away"
        listed = run("topics", "--tower", lone_tower)
        assert listed.returncode == 0
        assert named in listed.stderr.decode()
        assert named in run("stores", "--tower", lone_tower).stderr.decode()
        refused = run("topics", "--tower", lone_tower, "--min-stores", "all")
        assert refused.returncode == 1
        assert f"'min_stores' = 'all': 1 store has answered; away: store {gone}" in sentence(
            refused
        )
        assert run("heads", "t", "--tower", lone_tower, "--min-stores", "0").returncode == 2
        for wrong, why in [
            (slip, f"did you mean {gone}?"),
            ("x" * 32, f"those that are: {gone}"),
            (address, f"store {address} is there: stop it first"),
        ]:
            assert why in sentence(run("store", "forget", wrong, "--tower", lone_tower))
        assert run("store", "forget", "a", "b", "c", "--tower", lone_tower).returncode == 2
        assert run("store", "forget", gone, "--tower", lone_tower).returncode == 0
        assert run("topics", "--tower", lone_tower, "--min-stores", "all").returncode == 0
        assert gone not in run("topics", "--tower", lone_tower).stderr.decode()
    with Log(tmp_path) as log:
        assert log.met() == []
