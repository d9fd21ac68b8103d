"""The page's ten commands: a cluster with keys, from nothing to a record."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.cli.processes import PATIENCE_S, command, environment
from tests.pages import example


def test_a_locked_cluster_takes_ten_commands(tmp_path: Path) -> None:
    """They run unchanged, except for ports, which the system chooses."""
    lines = example("docs/security.md", "In ten commands", "sh").strip().splitlines()
    assert len(lines) <= 10
    any_port = "tcp://127.0.0.1:0"
    variables = environment(DAFKA_SUB_ADDRESS=any_port, DAFKA_PUB_ADDRESS=any_port)
    python = " ".join(map(shlex.quote, command(())))
    said: dict[str, str] = {}
    with ExitStack() as running:
        for line in lines:
            words = shlex.split(line)
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                variables[name] = value
                continue
            whole = line.removesuffix("&").replace("dafka ", f"{python} ", 1)
            if line.endswith("&"):
                told = running.enter_context(started(f"exec {whole}", tmp_path, variables))
                ready = json.loads(told.removeprefix("READY "))
                if words[1] == "tower":
                    variables["DAFKA_TOWER"] = ready["tower"]
                continue
            done = subprocess.run(
                ["bash", "-c", whole],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr)
            said[line] = done.stdout
    assert said["dafka consume secrets --exit-at-end"] == "in the dark\n"
    assert "this node has key me, with consume, produce" in said["dafka doctor"]
    assert "to owners of allowed keys" in said["dafka doctor"]


@contextmanager
def started(line: str, directory: Path, variables: dict[str, str]) -> Iterator[str]:
    """A long-running command, with its ready line."""
    with subprocess.Popen(
        ["bash", "-c", line],
        cwd=directory,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()
