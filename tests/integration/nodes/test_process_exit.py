"""Programs that end without closing their producers: nothing is lost in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dafka_core import Store
from tests.integration.nodes.peers import PATIENCE_S

ROOT = Path(__file__).parents[3]
COUNT = 10
LOST = f"{COUNT} records are not acknowledged after"


def ended(tower: str, how: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A program that has ended so."""
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.nodes.endings", tower, how, str(timeout_s)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("open", 0),
        ("dropped", 0),
        ("exit-0", 0),
        ("exit-none", 0),
        ("error-open", 1),
        ("fork", 0),
        ("child-fork", 0),
        ("child-spawn", 0),
        ("child-fork-error", 1),
    ],
)
def test_the_end_waits_for_acknowledgements(tower: str, store: Store, how: str, code: int) -> None:
    process = ended(tower, how, PATIENCE_S)
    assert process.returncode == code, process.stderr
    assert LOST not in process.stderr
    assert [info.end for info in store.log.partitions("t")] == [COUNT]


@pytest.mark.parametrize(
    "how",
    ["open", "dropped", "exit-0", "error-open", "child-fork", "child-spawn", "child-fork-error"],
)
def test_what_is_not_acknowledged_at_the_end_is_said(tower: str, how: str) -> None:
    process = ended(tower, how, 0.2)
    assert process.returncode == 1
    assert process.stderr.count(f"{LOST} 0.2 s") >= 1, process.stderr
    assert ("the program's own" in process.stderr) == ("error" in how)


@pytest.mark.parametrize(("how", "code"), [("exit-3", 3), ("error", 1)])
def test_a_program_that_fails_is_not_kept_waiting(tower: str, how: str, code: int) -> None:
    process = ended(tower, how, PATIENCE_S)
    assert process.returncode == code
    # In the log; and where a traceback is shown, at the error.
    assert process.stderr.count(f"{LOST} 0 s") == (2 if how == "error" else 1), process.stderr


def test_producers_wait_side_by_side(tower: str) -> None:
    process = ended(tower, "several", 0.5)
    assert process.returncode == 1
    waited = [line.partition(LOST)[2].split()[0] for line in process.stderr.splitlines()]
    assert sorted(waited) == ["0", "0", "0.5"]


def test_whatever_else_happens_at_the_end_still_does(tower: str) -> None:
    process = ended(tower, "others", 0.0)
    assert (process.returncode, process.stdout) == (1, "unflushed an exit function\n")
