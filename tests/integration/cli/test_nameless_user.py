"""Commands for a user without a name and a home directory, as containers have them."""

import functools
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.networks import unshare_works
from tests.integration.cli.processes import ANY_PORTS, PATIENCE_S, command, ended, environment

_USER = 54_321
_MAP = f"--map-user={_USER}"
_NO_NAMES = """
import pwd

def getpwuid(user):
    raise KeyError(user)

pwd.getpwuid = getpwuid
"""

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@functools.cache
def _prefix() -> tuple[str, ...]:
    return ("unshare", _MAP) if unshare_works(_MAP) else ()


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Neither ``HOME`` nor ``XDG_CONFIG_HOME``; without namespaces no user has a name."""
    kept = {name: value for name, value in environment().items() if name in ("PATH", "PYTHONPATH")}
    if not _prefix():
        startup = tmp_path / "startup"
        startup.mkdir()
        (startup / "sitecustomize.py").write_text(_NO_NAMES)
        paths = (str(startup), kept.get("PYTHONPATH", ""))
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return kept


@pytest.fixture
def run(tmp_path: Path, variables: dict[str, str]) -> Run:
    """Runs ``dafka`` as such a user."""

    def run_command(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return ended([*_prefix(), *command(arguments)], input=given, cwd=tmp_path, env=variables)

    return run_command


def test_commands_need_neither_a_home_directory_nor_a_user_name(
    run: Run, variables: dict[str, str], tmp_path: Path
) -> None:
    up = subprocess.Popen(
        [*_prefix(), *command(["up", "--metrics", "0", "--kafka", "127.0.0.1:0", *ANY_PORTS])],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=variables,
        text=True,
    )
    try:
        assert up.stdout is not None
        ready = next(line for line in up.stdout if line.startswith("READY "))
        tower = json.loads(ready.removeprefix("READY "))["tower"]
        assert run("produce", "t", "--tower", tower, given=b"one\ntwo\n").returncode == 0
        consumed = run("consume", "t", "--count", "2", "--from-beginning", "--tower", tower)
        assert consumed.stdout.split() == [b"one", b"two"], consumed.stderr
        for words in (["keys", "new", "node"], ["keys", "token", "token"]):
            done = run(*words)
            assert b"Traceback" not in done.stderr, (words, done.stderr)
        # It runs all commands that only look.
        assert run("bundle", "b.tar.gz", "--tower", tower).returncode == 0
        with tarfile.open(tmp_path / "b.tar.gz") as archive:
            errors = [each for each in archive.getnames() if each.endswith(".errors.txt")]
            for name in errors:
                said = archive.extractfile(name)
                assert said is not None
                assert said.read().endswith(b"exit code 0\n"), name
    finally:
        up.terminate()
        up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 0


def test_a_job_says_that_spark_needs_the_name(run: Run) -> None:
    done = run("job", "topic_to_parquet", "t", "out")
    assert (done.returncode, done.stderr.decode().count("\n")) == (1, 1)
    user = _USER if _prefix() else os.getuid()
    assert f"needs a name for user {user}: add this user to /etc/passwd" in done.stderr.decode()
