"""A store that runs as a command logs its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dafka_core.testing import wait_until
from tests.integration.cli.processes import ANY_PORTS, Dafka, succeed


def test_a_store_tells_programs_who_comes_and_that_it_ends(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def has(store: Dafka, event: str) -> bool:
        line = store.err.next()
        assert line is not None, told
        told.append(json.loads(line))  # its output
        return bool(told[-1]["event"] == event)

    directory, json_logs = str(tmp_path / "d"), ("--log-level", "info", "--log-format", "json")
    with Dafka("up", "--dir", directory, *json_logs, *ANY_PORTS) as store:
        where = store.ready()["tower"]
        wait_until(lambda: has(store, "store_started"))
        assert told[-1]["facts"]["directory"] == directory
        succeed("produce", "t", "--tower", where, given=b"a\nb\n", DAFKA_LOG_LEVEL="debug")
        wait_until(lambda: has(store, "peer_came"))
        assert store.stop() == 0
        rest = [json.loads(line)["event"] for line in store.err.rest()]
        assert rest[-2:] == ["store_stopped", "tower_stopped"]
