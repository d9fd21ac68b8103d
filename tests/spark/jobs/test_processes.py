"""Jobs as processes: watched, stopped, and killed with the processes that they started."""

import os
from pathlib import Path

import pytest
from demo.processes import Job, JobFailedError

from dafka_core.testing import wait_until

_PARENT = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"child": child.pid}), flush=True)
time.sleep(600)
"""

_RUDE = 'import signal; print("{}", flush=True); signal.pause()'
_POLITE = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {_RUDE}"


def started(directory: Path, text: str) -> Job:
    path = directory / "job.py"
    path.write_text(text)
    return Job(str(path), [], directory / "log")


def _first_event(job: Job) -> dict[str, int]:
    """The first line of a job, which has printed no other."""
    events: list[dict[str, int]] = []

    def arrived() -> bool:
        events.extend(job.events())
        return bool(events)

    wait_until(arrived)
    return events[0]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that has ended may be a zombie until its new parent reaps it.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_killing_a_job_kills_what_it_started(tmp_path: Path) -> None:
    with started(tmp_path, _PARENT) as job:
        child = _first_event(job)["child"]
        assert _runs(child)
        assert job.kill() == -9
        wait_until(lambda: not _runs(child))


def test_a_failing_job_shows_its_lines_and_its_log(tmp_path: Path) -> None:
    program = "print('{\"n\": 1}\\n[63.120s][warning][cds] of the JVM'); raise SystemExit('why')"
    with started(tmp_path, program) as job:
        wait_until(lambda: not job.running)
        events = job.events()
        assert next(events) == {"n": 1}
        with pytest.raises(JobFailedError, match=r"ended with 1(.|\n)*why") as caught:
            next(events)
    assert caught.value.code == 1
    assert "of the JVM" in (tmp_path / "log").read_text()


def test_a_job_stops_well_or_with_an_error(tmp_path: Path) -> None:
    with started(tmp_path, _POLITE) as job:
        _first_event(job)
        job.stop()
    with started(tmp_path, _RUDE) as job:
        _first_event(job)
        with pytest.raises(JobFailedError, match="ended with -15"):
            job.stop()


def test_processes_that_a_job_leaves_behind_are_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("demo.processes.LINGER_TIMEOUT_S", 0.1)
    with started(tmp_path, _PARENT) as job:
        child = _first_event(job)["child"]
        with pytest.raises(JobFailedError):
            job.stop()
        assert _runs(child)
    wait_until(lambda: not _runs(child))
