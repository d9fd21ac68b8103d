"""``dafka groups``."""

from __future__ import annotations

import json
from pathlib import Path

from dafka_core.testing import StoreDouble
from tests.integration.cli.processes import listed, refusal, run, succeed
from tests.integration.kafka.groups.kept import FIRST, keep


def test_groups_and_the_partitions_of_one(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        at = ("--stores", store.location.locations[-1])
        none = run("groups", *at)
        assert (none.returncode, none.stdout) == (0, b"")
        assert b"no consumer group has committed, or has members" in none.stderr
        keep(store)
        asked = succeed("groups", *at, "--json")
        group, idle = map(json.loads, asked.stdout.splitlines())
        assert group.pop("seconds_behind") >= 0
        assert 600 <= group.pop("bytes_behind") < 800
        expected = {"group": "g", "state": "stable", "members": 1, "partitions": 4}
        assert group == {**expected, "records_behind": 6}
        assert (idle["group"], idle["state"], idle["records_behind"]) == ("idle", "empty", 0)
        asked = run("groups", "g", *at)
        first, *_, last = listed(asked)
        assert first[:6] == ["t", "0", FIRST.partition, "4", "10", "6"]
        assert first[-3:] == ["app-1", "app", "10.0.0.7"]
        assert last == ["t", "7", *["-"] * 9]
        assert "unknown group 'gg' (there are 'g', 'idle')" in refusal(1, "groups", "gg", *at)
