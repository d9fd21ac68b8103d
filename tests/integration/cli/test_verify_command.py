"""``dafka checkpoint verify``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dafka_core.testing import StoreDouble
from tests.integration.cli.processes import run, sentence, shown
from tests.integration.cluster.audited_query import OUT, AuditedQuery
from tests.unit.queries.checkpoints import checkpoint


def test_verify_proves_or_names_the_batch(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "store", "S" * 32) as store:
        query = AuditedQuery(tmp_path / "c", [store])
        at = ["--stores", store.location.locations[0]]
        path = str(query.checkpoint.path)
        refused = run("checkpoint", "verify", path, *at)
        assert refused.returncode == 1
        assert "it makes them with option audit = true" in sentence(refused)
        query.note()
        made = run("checkpoint", "verify", path, "--pass-through", "--json", *at)
        assert json.loads(made.stdout.splitlines()[2]) == {
            "batch": 2,
            "state": "proved",
            "rows": 4,
            "source": "same",
            "recomputed": True,
            "why": "",
        }
        proved = run("checkpoint", "verify", path, "--from-batch", "1", *at)
        assert b"8 rows of 2 batches are as they were written" in proved.stderr
        assert re.search(r"3/\? +batches", shown("checkpoint", "verify", path, *at))
        query.append(OUT[0], [b"more"])
        wrong = run("checkpoint", "verify", path, *at)
        assert wrong.returncode == 1
        assert "rows from offset 6 on are of no batch" in sentence(wrong)
        assert len(wrong.stdout.splitlines()) == 4
        refused = run("checkpoint", "verify", path, "--from-batch", "9", *at)
        assert refused.returncode == 1


def test_what_cannot_be_verified_is_a_sentence(tmp_path: Path) -> None:
    one = str(checkpoint(tmp_path / "one"))
    for arguments, says in (
        (("--query", "no.such:f"), "for '--query': must be MODULE:FUNCTION"),
        (("--query", "os:no"), "for '--query': must be MODULE:FUNCTION"),
        (("--query", "a:b", "--pass-through"), "is given with --pass-through"),
        (("--query", "os:fspath", "--sink-option", "x"), "must be NAME=VALUE"),
        (("--tower", "-"), "must be HOST[:SUB_PORT:PUB_PORT]"),
    ):
        refused = run("checkpoint", "verify", one, *arguments)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert says in sentence(refused)
