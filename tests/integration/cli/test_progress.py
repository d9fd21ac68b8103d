"""Progress displays on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

from tests.forked import ForkedCluster
from tests.integration.cli.processes import run, shown


def test_long_work_shows_a_bar_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    at = {name: str(tmp_path / name) for name in ("lines", "b", "new", "arch", "x.jsonl")}
    (tmp_path / "lines").write_text("1\n2\n3\n")
    with ForkedCluster() as cluster:
        *_, store = cluster.locations(0)
        tower = ("--tower", cluster.tower)
        for arguments, unit in (
            (("produce", "t", at["lines"], *tower), r"3/\? +records"),
            (("copy", "t", at["x.jsonl"], *tower), r"3/3 +records"),
            (("copy", at["x.jsonl"], "back", *tower), r"3/\? +records"),
            (("archive", "t", "--dir", at["arch"], "--before", "now", *tower), r"3/\? +records"),
            (("store", "backup", store, at["b"]), "bytes"),
            (("store", "verify", at["b"]), r"2/\? +partitions"),
            (("store", "restore", at["new"], "--from", at["b"]), r"2/\? +partitions"),
        ):
            assert re.search(unit, shown(*arguments)), arguments
        done = run("store", "verify", at["b"])
        assert b"/? " not in done.stderr
