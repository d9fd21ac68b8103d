"""``dafka bundle``: diagnostics for a bug report, in one file."""

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
from typing import Any, Final

import click

from dafka_core.cli import flags, output
from dafka_core.cli.app import versions
from dafka_core.cli.configuration import CONFIG, PROFILE
from dafka_core.config.node_options import ReaderOptions
from dafka_core.errors import HIDDEN, is_secret
from dafka_core.model.names import escape
from dafka_core.system.files import open_new

COMMANDS: Final = (
    *("status", "doctor", "nodes", "stores", "topics", "partitions", "staged"),
    *("lag", "groups", "retain", "config"),
)
"""The output of each becomes a file of the bundle."""

MARGIN_S: Final = 60.0  # time that a command may take beyond its own timeout


@click.pass_context
@flags.argument(
    "file",
    required=False,
    metavar="[FILE]",
    help="A new .tar.gz file; by default named after the current time.",
)
@flags.result_option
@flags.timeout_option
@flags.stores_option
@flags.table_options(ReaderOptions)
def bundle(
    ctx: click.Context, file: str | None, *, timeout_s: float, uris: str, **options: Any
) -> None:
    """Collect diagnostics for a bug report in one file: versions, settings and cluster state.

    It contains names of topics, addresses and sizes, but no records and no secrets.
    """
    path = Path(file or f"dafka-bundle-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
    variables = _variables(ctx, {**options, "timeout_s": timeout_s, "stores": uris})
    with (
        flags.file_errors("file", path, "written"),
        open_new(path, replaces=False) as made,
        tarfile.open(None, "w:gz", made) as archive,
    ):
        for name, content in _files(variables, timeout_s):
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mtime = len(content), int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    text = f"{path}: check its contents before you share it"
    output.done(text, file=escape(str(path)))


def _variables(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, str]:
    given = {CONFIG: ctx.meta.get("dafka.config"), PROFILE: ctx.meta.get("dafka.profile")}
    given |= {flags.PREFIX + name.upper(): value for name, value in options.items()}
    return {name: _text(value) for name, value in given.items() if value not in (None, "")}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _files(settings: Mapping[str, str], timeout_s: float) -> Iterator[tuple[str, bytes]]:
    yield "versions.json", _json(versions())
    yield "machine.json", _json(_machine())
    yield "environment.json", _json(_environment())
    with ThreadPoolExecutor(len(COMMANDS)) as threads:
        runs = [threads.submit(_run, name, settings, timeout_s) for name in COMMANDS]
        for name, run in zip(COMMANDS, runs, strict=True):
            results, errors = run.result()
            yield f"{name}.jsonl", results
            if errors:
                yield f"{name}.errors.txt", errors


def _run(name: str, settings: Mapping[str, str], timeout_s: float) -> tuple[bytes, bytes]:
    command = [sys.executable, "-m", "dafka_core.cli", name, "--json"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s + MARGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return b"", b"timed out\n"
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
        if name.startswith(flags.PREFIX)
    }


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
