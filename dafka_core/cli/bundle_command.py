"""``dafka bundle``: what a report of a defect needs, in one file."""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.configuration import CONFIG, PREFIX, PROFILE
from dafka_core.cli.flags import WithResult
from dafka_core.cli.list_commands import Timeout, Uris
from dafka_core.cli.version_command import versions
from dafka_core.errors import HIDDEN, ConfigError, is_secret
from dafka_core.model.names import escape
from dafka_core.system.files import open_new

COMMANDS: Final = (
    *("status", "doctor", "nodes", "stores", "topics", "partitions", "staged"),
    *("lag", "groups", "retain", "config"),
)
"""What a cluster is asked; the output of each is a file."""

MARGIN_S: Final = 60.0
"""How much longer than its own limit a command may take."""


def bundle(
    ctx: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            show_default=False,
            help="A new .tar.gz; named by the time.",
        ),
    ] = None,
    *,
    as_json: WithResult = False,
    timeout_s: Timeout = 10.0,
    uris: Uris = "",
    **options: Any,
) -> None:
    """Write a file for a report of a defect: versions, settings, and what the cluster says.

    It has names of topics, addresses and sizes in it; no record, and no value of a secret.
    """
    path = Path(file or f"dafka-bundle-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
    told = _settings(ctx, {**options, "timeout_s": timeout_s, "stores": uris})
    try:
        with open_new(path, replaces=False) as made, tarfile.open(None, "w:gz", made) as archive:
            for name, octets in _files(told, timeout_s):
                entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mtime = len(octets), int(time.time())
                archive.addfile(entry, io.BytesIO(octets))
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise ConfigError("file", escape(str(path)), why) from None
    said = f"{path}: look into it before you give it away"
    output.done(said, as_json=as_json, file=escape(str(path)))


def _settings(ctx: typer.Context, options: Mapping[str, Any]) -> dict[str, str]:
    told = {CONFIG: ctx.meta.get("dafka.config"), PROFILE: ctx.meta.get("dafka.profile")}
    told |= {PREFIX + name.upper(): value for name, value in options.items()}
    return {name: _text(value) for name, value in told.items() if value not in (None, "")}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _files(told: Mapping[str, str], timeout_s: float) -> Iterator[tuple[str, bytes]]:
    yield "versions.json", _json(versions())
    yield "machine.json", _json(_machine())
    yield "environment.json", _json(_environment())
    with ThreadPoolExecutor(len(COMMANDS)) as threads:
        runs = [threads.submit(_run, name, told, timeout_s) for name in COMMANDS]
        for name, run in zip(COMMANDS, runs, strict=True):
            said, complained = run.result()
            yield f"{name}.jsonl", said
            if complained:
                yield f"{name}.errors.txt", complained


def _run(name: str, told: Mapping[str, str], timeout_s: float) -> tuple[bytes, bytes]:
    command = [sys.executable, "-m", "dafka_core.cli", name, "--json"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s + MARGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return b"", b"it did not end in time\n"
    code = f"exit code {done.returncode}\n".encode()
    return done.stdout, done.stderr + code if done.stderr or done.returncode else b""


def _machine() -> dict[str, object]:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _environment() -> dict[str, str]:
    return {
        name: HIDDEN if is_secret(name) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX)
    }


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
