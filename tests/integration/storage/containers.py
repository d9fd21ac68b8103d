"""Processes of the tests in containers: with process ids and mounts of their own.

Where the machine lets nobody make a container, they run outside of one, and what they do is tested
all the same.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]


@functools.cache
def can_contain() -> bool:
    """Whether this process may make containers with mounts."""
    trial = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        return subprocess.run(trial, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def contained(command: Sequence[str], *mounts: str) -> list[str]:
    """The command that runs ``command`` as process 1 of a container, after shell commands."""
    if not can_contain():
        return [*command]
    return [*_UNSHARE, "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *command]


def beside(process: subprocess.Popen[str], command: Sequence[str]) -> list[str]:
    """The command that runs another one with the mounts of a contained process."""
    if not can_contain():
        return [*command]
    target = f"--target={inner(process)}"
    return ["nsenter", target, "--user", "--mount", "--preserve-credentials", *command]


def inner(process: subprocess.Popen[str]) -> int:
    """The process id of a contained process as the tests see it."""
    if not can_contain():
        return process.pid
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def send(process: subprocess.Popen[str], signal_number: int) -> None:
    """Sends a signal to a contained process from outside, where process 1 does not refuse it."""
    os.kill(inner(process), signal_number)


def read_only(directory: Path) -> str:
    """The shell command that mounts a directory at its place, for reading only."""
    return f"mount --bind {directory} {directory}; mount -o remount,bind,ro {directory}"


def overlay(image: Path, layer: Path, mounted: Path) -> str:
    """The shell command that mounts a directory as containers have their images."""
    layers = f"lowerdir={image},upperdir={layer}/upper,workdir={layer}/work"
    return f"mkdir -p {layer}/upper {layer}/work; mount -t overlay overlay -o {layers} {mounted}"
