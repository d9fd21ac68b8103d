"""Commands for a user without a name and a home directory, as containers have them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.networks import unshare_works
from tests.integration.cli.processes import ANY_PORTS, PATIENCE_S, command, environment

_USER = 54_321
_MAP = f"--map-user={_USER}"
_AS_USER = ["unshare", _MAP]


def _variables() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name in ("PATH", "PYTHONPATH")}


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs ``dafka`` as such a user; neither ``HOME`` nor ``XDG_CONFIG_HOME`` is set."""
    if not unshare_works(_MAP):
        pytest.skip(
            "needs user namespaces: install util-linux 2.38, and set the sysctls "
            "kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0"
        )

    def run_command(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*_AS_USER, *command(arguments)],
            input=given,
            capture_output=True,
            cwd=tmp_path,
            env=_variables(),
            timeout=PATIENCE_S,
            check=False,
        )

    return run_command


def test_commands_need_neither_a_home_directory_nor_a_user_name(run: Run, tmp_path: Path) -> None:
    up = subprocess.Popen(
        [*_AS_USER, *command(["up", "--metrics", "0", "--kafka", "127.0.0.1:0", *ANY_PORTS])],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=_variables(),
        text=True,
    )
    try:
        assert up.stdout is not None
        ready = next(line for line in up.stdout if line.startswith("READY "))
        tower = json.loads(ready.removeprefix("READY "))["tower"]
        assert run("produce", "t", "--tower", tower, given=b"one\ntwo\n").returncode == 0
        consumed = run("consume", "t", "--count", "2", "--from-beginning", "--tower", tower)
        assert consumed.stdout.split() == [b"one", b"two"], consumed.stderr
        for each in ("status", "doctor", "nodes", "topics", "stores", "lag", "groups", "config"):
            done = run(each, *(() if each == "config" else ("--tower", tower)))
            assert done.returncode == 0, (each, done.stderr)
        for words in (["keys", "new", "node"], ["keys", "token", "token"], ["bundle", "b.zip"]):
            done = run(*words)
            assert b"Traceback" not in done.stderr, (words, done.stderr)
        assert (tmp_path / "b.zip").exists()
    finally:
        up.terminate()
        up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 0


def test_a_job_says_that_spark_needs_the_name(run: Run) -> None:
    done = run("job", "topic_to_parquet", "t", "out")
    assert (done.returncode, done.stderr.decode().count("\n")) == (1, 1)
    assert f"needs a name for user {_USER}: add this user to /etc/passwd" in done.stderr.decode()


def test_a_directory_that_cannot_be_made_is_named_with_its_option(run: Run) -> None:
    done = run("up", "--dir", "/proc/store", *ANY_PORTS)
    assert done.returncode == 1
    assert b"store at /proc/store: it cannot be made" in done.stderr
    assert b"set --dir to a directory that can" in done.stderr
