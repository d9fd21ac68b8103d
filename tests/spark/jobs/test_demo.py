"""The demo: it ends well on a week of flights, and badly on any difference."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from demo import demo
from demo.demo import Demo, Outcome
from demo.processes import JobFailedError

from tests.spark.jobs.programs import JOBS, finished

_DAYS = {
    "window_start": datetime(2013, 1, 1, tzinfo=UTC),
    "window_end": datetime(2013, 1, 2, tzinfo=UTC),
}
_COUNTS = {"flights": 20, "cancelled": 1, "delayed": 2, "mean_delay_min": 4.5, "max_delay_min": 71}
_RESULT = {**_DAYS, **_COUNTS, "origin": "JFK", "carrier": "AA"}


@pytest.mark.nightly
def test_the_demo_survives_its_crash_and_finds_no_difference(tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-m", "demo", "--limit=4000", f"--output={output}"]
    done = finished(*command, cwd=JOBS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed the query (SIGKILL) after batch" in done.stdout
    assert "4000 in, 4000 out, checksums equal, restart survived" in done.stdout
    assert "JetBlue Airways" in done.stdout
    assert (output / "delays.png").read_bytes().startswith(b"\x89PNG")


def test_a_difference_or_a_failing_job_makes_the_demo_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(wrong: list[str], differences: list[str], log: Path | None = None) -> tuple[int, str]:
        def stream(self: Demo) -> tuple[datetime, list[str]]:
            if log is not None:
                raise JobFailedError("flight_delays.py", 1, log)
            return datetime(2013, 1, 1, 12, tzinfo=UTC), wrong

        outcome = Outcome(20, 20, [_RESULT], differences)
        monkeypatch.setattr(Demo, "stream", stream)
        monkeypatch.setattr(Demo, "compare", lambda self: outcome)
        code = demo.main(["--limit=1000", f"--output={tmp_path}"])
        return code, capsys.readouterr().out

    monkeypatch.setattr(demo, "EmbeddedCluster", lambda: nullcontext(SimpleNamespace(tower="")))
    survived, why = "checksums equal, restart survived", "parquet: 1 rows missing"
    code, printed = run([], [])
    assert (code, survived in printed) == (0, True)
    for wrong, differences in ([why], []), ([], [why]):
        code, printed = run(wrong, differences)
        assert (code, survived in printed, why in printed) == (1, False, True)
    log = tmp_path / "query.log"
    log.write_text("the reason\n")
    code, printed = run([], [], log)
    assert (code, "the reason" in printed) == (1, True)
