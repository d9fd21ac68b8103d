"""``dafka job`` and ``dafka notebooks``: the package's pipelines and notebooks.

They ship with ``dafka_spark``, which is not imported: ``dafka job`` reads the docstrings of the
scripts, and replaces its process by the one that it runs.
"""

from __future__ import annotations

import ast
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from pwd import getpwuid
from typing import Any, Final

import click

from dafka_core.cli import flags, output
from dafka_core.config.node_options import NodeOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted
from dafka_core.system.files import make_directory, open_new

_PACKAGE: Final = "dafka_spark"
_PRINT_SUBMIT: Final = "--print-submit"
_LOGGING: Final = "log4j2.properties"

_NODES_OWN: Final = tuple(row.name for row in NodeOptions.table() if row.name != "tower")
"""Options that ``dafka job`` does not take: jobs have their own."""

_RUN: Final = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the job has something to close
__file__ = sys.argv[2]
sys.argv[:3] = [f"dafka job {sys.argv[1]}"]
with open(__file__, "rb") as script:
    code = compile(script.read(), __file__, "exec")
exec(code)
"""
"""Runs a job as ``__main__``, as spark-submit does: Spark then pickles its functions by value, as
workers cannot import them. Its usage messages begin with ``dafka job NAME``."""


@flags.argument("name", required=False, metavar="[NAME]", help="A job; without it, a list.")
@flags.argument(
    "arguments", nargs=-1, metavar="[ARGUMENTS]", help="The job's arguments; see its --help."
)
@flags.option(
    _PRINT_SUBMIT,
    "print_submit",
    is_flag=True,
    help="Print the command that runs the job with spark-submit instead.",
)
@flags.json_option
@flags.table_options(NodeOptions, without=_NODES_OWN)
def job(name: str | None, arguments: Sequence[str], *, print_submit: bool, **options: Any) -> None:
    """Run one of the package's Spark jobs on this machine, or list the jobs.

    Flags after the name go to the job, as in 'dafka job topic_to_parquet --help'.
    """
    known = jobs()
    if name is None:
        rows = [(each, _purpose(script)) for each, script in known.items()]
        output.table(("job", "what it does"), rows, wrapped=("what it does",))
        return
    name = name.replace("-", "_")
    if name not in known:
        near = what_there_is(name, {*known}, "jobs, as package dafka_spark is not installed")
        raise click.BadParameter(f"unknown job {quoted(name)} ({near})")
    given = [each for each in arguments if each != _PRINT_SUBMIT]
    if tower := options.get("tower"):
        given = [f"--tower={tower}", *given]
    if print_submit or _PRINT_SUBMIT in arguments:
        output.write(f"{_submitted(known[name], given)}\n".encode())
        return
    if find_spec("pyspark") is None:
        raise DafkaError(f"job {name} needs Spark: pip install 'pyspark>=4.3,<4.4', and Java 17")
    try:
        getpwuid(os.getuid())
    except KeyError:
        why = "add this user to /etc/passwd; Hadoop's libraries in Spark do not start without it"
        raise DafkaError(f"job {name} needs a name for user {os.getuid()}: {why}") from None
    # A new program, as this process has signal handlers and threads.
    command = [sys.executable, "-P", "-c", _RUN, name, str(known[name]), *given]
    # os.environ lacks what ``keep_freed_memory`` has set for this process only.
    os.execve(sys.executable, command, os.environ)  # noqa: S606


def jobs() -> dict[str, Path]:
    """Return the scripts by job name, without importing them."""
    return shipped_files("jobs", ".py")


def shipped_files(directory: str, suffix: str) -> dict[str, Path]:
    """Return the files of a directory that comes with ``dafka_spark``, by their stems.

    The wheel has the directory inside the package; a checkout has it beside the package.
    """
    for package in _packages():
        for found in (package / directory, package.parent / directory):
            if files := sorted(found.glob(f"*{suffix}")):
                return {path.stem: path for path in files}
    return {}


def _packages() -> list[Path]:
    package = find_spec(_PACKAGE)
    return [Path(each) for each in (package and package.submodule_search_locations) or ()]


def _purpose(script: Path) -> str:
    source = ast.parse(script.read_bytes())
    return (ast.get_docstring(source) or "").partition("\n")[0]


def _submitted(script: Path, arguments: Sequence[str]) -> str:
    [package, *_] = _packages()
    logging = f"-Dlog4j2.configurationFile={(package / _LOGGING).as_uri()}"
    command = ("spark-submit", "--driver-java-options", logging, str(script), *arguments)
    return shlex.join(command)


_SUFFIX: Final = ".ipynb"


@flags.argument(
    "directory",
    required=False,
    metavar="[DIR]",
    help="The target directory, created if missing; without it the notebooks are listed.",
)
@flags.argument("names", nargs=-1, metavar="[NAME]...", help="Only these; default: all.")
@flags.option("--force", is_flag=True, help="Replace existing files of these names.")
@flags.json_option
def notebooks(directory: str | None, names: Sequence[str], *, force: bool) -> None:
    """Copy the package's notebooks to a directory, or list them.

    Each notebook starts its own cluster.
    """
    found = {name: path.read_bytes() for name, path in shipped_files("notebooks", _SUFFIX).items()}
    if directory is None:
        rows = [(name, _title(text)) for name, text in found.items()]
        output.table(("notebook", "about"), rows, wrapped=("about",))
        return
    if directory in found and not names and not Path(directory).exists():
        why = f"is a notebook; 'dafka notebooks . {directory}' copies it to this directory"
        raise ConfigError("dir", directory, why, "argument")
    chosen = list(dict.fromkeys(name.removesuffix(_SUFFIX) for name in names or found))
    for name in chosen:
        if name not in found:
            near = what_there_is(name, found, "notebooks")
            raise ConfigError("name", escape(name), f"is not a notebook; {near}", "argument")
    paths = {name: Path(directory) / f"{name}{_SUFFIX}" for name in chosen}
    existing = [path.name for path in paths.values() if os.path.lexists(path)]
    if existing and not force:
        why = f"already contains {', '.join(existing)}; --force replaces existing files"
        raise ConfigError("dir", escape(directory), why, "argument")
    with flags.file_errors("dir", directory, "written to", "argument"):
        make_directory(Path(directory))
        for name, path in paths.items():
            with open_new(path, replaces=force) as file:
                file.write(found[name])
    output.table(("notebook", "file"), [(n, str(p)) for n, p in paths.items()])


def _title(text: bytes) -> str:
    import json

    [heading, *_] = json.loads(text)["cells"][0]["source"]
    return str(heading).strip("# \n")
