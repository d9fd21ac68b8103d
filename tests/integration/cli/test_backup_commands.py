"""``dafka store backup``, ``restore --from`` and ``verify``."""

import json
import os
from pathlib import Path

from dafka_core.nodes.store_identity import new_identity
from dafka_core.testing import wait_until
from tests.integration.cli.processes import Dafka, refusal, run, sentence, succeed
from tests.integration.nodes.test_store_backup import forge, linked
from tests.integration.storage.damage import erase, tamper, trees
from tests.integration.storage.processes import TP
from tests.integration.storage.test_log_check import NAMES, many


def test_a_running_store_is_backed_up_verified_and_restored(
    lone_tower: str, tmp_path: Path
) -> None:
    directory, first, second = (str(tmp_path / name) for name in ("store", "b1", "b2"))
    with Dafka("store", "--dir", directory, "--tower", lone_tower) as running:
        address = running.ready()["address"]
        made = succeed("store", "backup", directory, first)
        assert f"{first} is a backup of store {address} (full)" in made.stderr.decode()
        made = succeed("store", "backup", directory, second, "--since", first, "--json")
        manifest = json.loads(made.stdout)
        assert (manifest["store"], manifest["previous_at"]) == (address, "../b1")
        assert "(incremental)" in made.stderr.decode()
        refused = refusal(1, "store", "backup", directory, first)
        assert "not empty: name another directory" in refused
        checked = succeed("store", "verify", directory)
        assert b"0 records in 0 blocks, 0 bytes: no damage" in checked.stderr
    restored = succeed("store", "restore", str(tmp_path / "new"), "--from", second, "--json")
    assert address not in restored.stderr.decode()
    with Dafka("store", "--dir", str(tmp_path / "new"), "--tower", lone_tower) as again:
        own = again.ready()["address"]
        assert f"is now store {own}" in restored.stderr.decode()
        told = json.loads(restored.stdout)
        assert told == {"directory": str(tmp_path / "new"), "store": own}
    refused = refusal(1, "store", "--dir", first, "--tower", lone_tower)
    assert "it is a backup, which a store must not change" in refused
    (tmp_path / "b1" / "backup.mdb").write_bytes(b"")
    damaged = run("store", "verify", second, "--json")
    assert damaged.returncode == 1
    assert json.loads(damaged.stdout)["kind"] == "manifest"
    assert run("store", "verify", str(tmp_path / "nothing")).returncode == 1


def test_a_change_at_rest_is_named_and_a_forged_chain_by_a_saved_link(tmp_path: Path) -> None:
    directory, other, file = (str(tmp_path / name) for name in ("store", "other", "links"))
    every = linked(tmp_path / "store")
    linked(tmp_path / "other")
    saved = succeed("store", "verify", directory, "--save", file)
    assert b"300 records match their links" in saved.stderr
    assert b"has the newest links of 1 partitions" in saved.stderr
    same = succeed("store", "verify", directory, "--against", file, "--save", file)
    assert f"300 records, and all links before them, match {file}" in same.stderr.decode()
    succeed("store", "verify", directory, "--beside", other)
    tamper(tmp_path / "store", every[7], every[7][:-1] + b"!")
    changed = run("store", "verify", directory, "--json", "--save", str(tmp_path / "none"))
    assert changed.returncode == 1
    found = json.loads(changed.stdout)
    assert (found["kind"], found["partition"], found["offset"]) == ("changed", TP.partition, 0)
    assert not (tmp_path / "none").exists()
    forge(tmp_path / "store", every[8], every[8][:-1] + b"!")
    succeed("store", "verify", directory)
    forged = run("store", "verify", directory, "--against", file, "--json")
    assert forged.returncode == 1
    assert json.loads(forged.stdout)["kind"] == "changed"
    assert b"1 links differ" in forged.stderr
    assert "the file has links of store" in refusal(1, "store", "verify", other, "--against", file)
    different = run("store", "verify", directory, "--beside", other, "--json")
    assert different.returncode == 1
    found = json.loads(different.stdout)
    assert (found["kind"], found["partition"], found["offset"]) == ("different", TP.partition, 0)
    refused = refusal(2, "store", "verify", directory, "--beside", other, "--save", file)
    assert "cannot be combined with --save or --against" in refused
    nothing = run("store", "verify", directory, "--against", other)
    assert "must be a file that 'dafka store verify --save' has written" in sentence(nothing)


def test_a_damaged_tree_is_named_partition_by_partition(tmp_path: Path) -> None:
    """It used to end with a traceback, after the first partition."""
    directory = tmp_path / "store"
    many(directory)
    new_identity(directory)
    data, several = directory / "data.mdb", 0
    for at in trees(data):
        page = erase(data, at)
        found = run("store", "verify", str(directory), "--json")
        erase(data, at, page)
        assert b"Traceback" not in found.stderr
        named = {json.loads(line)["partition"] for line in found.stdout.splitlines()} - {""}
        if 1 < len(named) < len(NAMES):
            several += 1
            assert found.returncode == 1
            assert f"{len(NAMES)} partitions" in found.stderr.decode()
    assert several


def test_a_file_that_is_cut_under_a_store_ends_it_with_a_sentence(
    lone_tower: str, tmp_path: Path
) -> None:
    """It used to be killed by SIGBUS, and to say nothing."""
    directory = tmp_path / "store"
    many(directory)
    new_identity(directory)
    with Dafka("store", "--dir", str(directory), "--tower", lone_tower) as running:
        uri = next(each for each in running.ready()["flight"] if "unix" not in each)

        def has_ended() -> bool:
            os.truncate(directory / "data.mdb", 8192)  # again: what is written makes it longer
            assert run("store", "verify", uri).returncode == 1
            return running.process.poll() is not None

        wait_until(has_ended, "the store touches what was cut")
        assert running.wait() == 1
        said = b"\n".join(running.err.rest()).decode()
    assert f"store at {directory}: data.mdb cannot be read from byte " in said
    assert "(the file ends at byte 8192), so this process ends" in said
