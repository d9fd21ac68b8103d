"""The demo: it ends well on a week of flights, and badly on any difference."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from demo import demo
from demo.demo import Demo, Observed, Outcome
from demo.processes import JobFailedError

from tests.spark.jobs.programs import ROOT

DEMO_TIMEOUT_S = 280

_RESULT = {
    "window_start": datetime(2013, 1, 1, tzinfo=UTC),
    "window_end": datetime(2013, 1, 2, tzinfo=UTC),
    "origin": "JFK",
    "carrier": "AA",
    "flights": 20,
    "cancelled": 1,
    "delayed": 2,
    "mean_delay_min": 4.5,
    "max_delay_min": 71,
}


def test_the_demo_survives_its_crash_and_finds_no_difference(tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-m", "demo", "--limit=4000", f"--output={output}"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        cwd=ROOT / "jobs",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed the query (SIGKILL) after batch" in done.stdout
    assert "4000 in, 4000 out, checksums equal, restart survived" in done.stdout
    assert "JetBlue Airways" in done.stdout
    assert (output / "delays.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "differences", "status"),
    [
        ([], [], 0),
        (["the query began anew"], [], 1),
        ([], ["parquet: 1 rows missing"], 1),
    ],
)
def test_a_difference_makes_the_demo_fail(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    wrong: list[str],
    differences: list[str],
    status: int,
) -> None:
    reached = datetime(2013, 1, 1, 12, tzinfo=UTC)
    monkeypatch.setattr(demo, "EmbeddedCluster", lambda: nullcontext(SimpleNamespace(tower="")))
    monkeypatch.setattr(Demo, "stream", lambda self: (reached, wrong))
    outcome = Outcome(20, 20, [_RESULT], differences)
    monkeypatch.setattr(Demo, "compare", lambda self: outcome)
    assert demo.main(["--limit=1000", f"--output={tmp_path}"]) == status
    printed = capsys.readouterr().out
    assert ("checksums equal, restart survived" in printed) == (status == 0)
    assert all(sentence in printed for sentence in (*wrong, *differences))


def test_a_job_that_fails_ends_the_demo_with_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "query.log"
    log.write_text("the reason\n")

    def stream(self: Demo) -> None:
        raise JobFailedError("flight_delays.py", 1, log)

    monkeypatch.setattr(demo, "EmbeddedCluster", lambda: nullcontext(SimpleNamespace(tower="")))
    monkeypatch.setattr(Demo, "stream", stream)
    assert demo.main(["--limit=1000", f"--output={tmp_path}"]) == 1
    assert "the reason" in capsys.readouterr().out


def test_what_jobs_print_is_taken_in() -> None:
    observed = Observed()
    observed.note({"event": "fed", "records": {"EWR": 3, "JFK": 2, "LGA": 1}})
    observed.note(
        {
            "event": "batch",
            "batch": 4,
            "offsets": {"flights": {"A": 10, "B": 5}, "other": {"C": 7}},
            "late": 1,
            "malformed": 2,
        }
    )
    entry = {"partition": "A", "origin": "EWR", "records": 3, "sha256": "ab"}
    observed.note({"event": "done", "topic": "flights", "partitions": [entry]})
    assert observed.fed["JFK"] == 2
    assert (observed.read, observed.batches, observed.lost) == (15, [4], 3)
    assert observed.partitions == [("A", 3, "ab")]
