"""Jobs as processes: watched, stopped, killed with all they started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.processes import Job, JobFailedError

WAIT_S = 30.0

_PARENT = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"child": child.pid}), flush=True)
time.sleep(600)
"""

_RUDE = """
import signal
print("{}", flush=True)
signal.pause()
"""

_POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("{}", flush=True)
signal.pause()
"""


def _script(directory: Path, text: str) -> str:
    path = directory / "job.py"
    path.write_text(text)
    return str(path)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def _first_event(job: Job) -> dict[str, int]:
    """The first line of a job, which has printed no other."""
    events: list[dict[str, int]] = []

    def arrived() -> bool:
        events.extend(job.events())
        return bool(events)

    _wait_for(arrived)
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
    with Job(_script(tmp_path, _PARENT), [], tmp_path / "log") as job:
        child = _first_event(job)["child"]
        assert _runs(child)
        assert job.kill() == -9
        _wait_for(lambda: not _runs(child))


def test_a_job_that_fails_shows_its_log(tmp_path: Path) -> None:
    with Job(_script(tmp_path, 'raise SystemExit("the reason")'), [], tmp_path / "log") as job:
        _wait_for(lambda: not job.running)
        with pytest.raises(JobFailedError, match="the reason") as caught:
            list(job.events())
    assert caught.value.code == 1


def test_what_a_failing_job_printed_comes_before_its_failure(tmp_path: Path) -> None:
    script = _script(tmp_path, "print('{\"n\": 1}'); raise SystemExit(3)")
    with Job(script, [], tmp_path / "log") as job:
        _wait_for(lambda: not job.running)
        events = job.events()
        assert next(events) == {"n": 1}
        with pytest.raises(JobFailedError, match="ended with 3"):
            next(events)


def test_what_a_jvm_prints_beside_a_job_is_in_its_log(tmp_path: Path) -> None:
    script = _script(tmp_path, "print('[63.120s][warning][cds] it says\\n{\"n\": 1}')")
    with Job(script, [], tmp_path / "log") as job:
        assert _first_event(job) == {"n": 1}
        _wait_for(lambda: not job.running)
    assert "it says" in (tmp_path / "log").read_text()


def test_a_job_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    with Job(_script(tmp_path, _POLITE), [], tmp_path / "log") as job:
        _first_event(job)
        job.stop()


def test_a_job_that_does_not_stop_well_is_an_error(tmp_path: Path) -> None:
    with Job(_script(tmp_path, _RUDE), [], tmp_path / "log") as job:
        _first_event(job)
        with pytest.raises(JobFailedError, match="ended with -15"):
            job.stop()


def test_what_a_job_leaves_behind_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("demo.processes.LINGER_TIMEOUT_S", 0.1)
    with Job(_script(tmp_path, _PARENT), [], tmp_path / "log") as job:
        child = _first_event(job)["child"]
        with pytest.raises(JobFailedError):
            job.stop()
        assert _runs(child)
    _wait_for(lambda: not _runs(child))
