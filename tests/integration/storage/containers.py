"""Processes in containers, with process ids and mounts of their own.

Where no container can be made, they run outside of one, and their behaviour is tested all the same.
"""

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]


@functools.cache
def can_contain() -> bool:
    """Return whether this process may make containers with mounts."""
    trial = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        return subprocess.run(trial, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def contained(command: Sequence[str], *mounts: str) -> list[str]:
    """Return the command line that runs ``command`` as a container's process 1."""
    if not can_contain():
        return [*command]
    return [*_UNSHARE, "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *command]


def beside(process: subprocess.Popen[str], command: Sequence[str]) -> list[str]:
    """Return the command that runs another one with the mounts of a contained process."""
    if not can_contain():
        return [*command]
    target = f"--target={inner(process)}"
    return ["nsenter", target, "--user", "--mount", "--preserve-credentials", *command]


def inner(process: subprocess.Popen[str]) -> int:
    """Return the process id of a contained process outside the container."""
    if not can_contain():
        return process.pid
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def send(process: subprocess.Popen[str], signal_number: int) -> None:
    """Send a signal to a contained process from outside, where process 1 does not ignore it."""
    os.kill(inner(process), signal_number)


def read_only(directory: Path) -> str:
    """Return the shell command that mounts a directory read-only at its place."""
    return f"mount --bind {directory} {directory}; mount -o remount,bind,ro {directory}"


def overlay(image: Path, layer: Path, mounted: Path) -> str:
    """Return the shell command that mounts a directory like a container's image."""
    layers = f"lowerdir={image},upperdir={layer}/upper,workdir={layer}/work"
    return f"mkdir -p {layer}/upper {layer}/work; mount -t overlay overlay -o {layers} {mounted}"
