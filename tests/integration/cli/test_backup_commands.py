"""``dafka store backup``, ``restore --from`` and ``verify``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.cli.processes import Dafka, run, sentence


def test_a_running_store_is_backed_up_verified_and_restored(
    lone_tower: str, tmp_path: Path
) -> None:
    directory, first, second = (str(tmp_path / name) for name in ("store", "b1", "b2"))
    with Dafka("store", "--dir", directory, "--tower", lone_tower) as running:
        address = running.ready()["address"]
        made = run("store", "backup", directory, first)
        assert made.returncode == 0
        assert f"{first} is a backup of store {address} (all of it)" in made.stderr.decode()
        made = run("store", "backup", directory, second, "--since", first, "--json")
        assert made.returncode == 0
        manifest = json.loads(made.stdout)
        assert (manifest["store"], manifest["previous_at"]) == (address, "../b1")
        assert "(what is new since it)" in made.stderr.decode()
        refused = run("store", "backup", directory, first)
        assert refused.returncode == 1
        assert "not empty: name another one" in sentence(refused)
        checked = run("store", "verify", directory)
        assert checked.returncode == 0
        assert b"0 records in 0 blocks, 0 bytes, format 3: all good" in checked.stderr
    restored = run("store", "restore", str(tmp_path / "new"), "--from", second, "--json")
    assert restored.returncode == 0
    assert address not in restored.stderr.decode()
    with Dafka("store", "--dir", str(tmp_path / "new"), "--tower", lone_tower) as again:
        own = again.ready()["address"]
        assert f"is store {own} from now on" in restored.stderr.decode()
        told = json.loads(restored.stdout)
        assert told == {"directory": str(tmp_path / "new"), "store": own}
    refused = run("store", "--dir", first, "--tower", lone_tower)
    assert refused.returncode == 1
    assert "it is a backup, which no store changes" in sentence(refused)
    (tmp_path / "b1" / "backup.mdb").write_bytes(b"")
    damaged = run("store", "verify", second, "--json")
    assert damaged.returncode == 1
    assert json.loads(damaged.stdout)["kind"] == "manifest"
    assert run("store", "verify", str(tmp_path / "nothing")).returncode == 1
