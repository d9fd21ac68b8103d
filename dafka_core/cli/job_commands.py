"""``dafka job`` and ``dafka notebooks``: the pipelines and notebooks of the package.

They are scripts that come with ``dafka_spark``, of which this package knows only the name: it reads
the docstring of each, and leaves the process to the one that is to run.
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
from typing import Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.list_commands import AsJson
from dafka_core.config.node_options import NodeOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted
from dafka_core.system.files import make_directory, open_new

_PACKAGE: Final = "dafka_spark"
_PRINT_SUBMIT: Final = "--print-submit"
_LOGGING: Final = "log4j2.properties"

OTHER_OPTIONS: Final = frozenset(row.name for row in NodeOptions.table()) - {"tower"}
"""Options of nodes that are not this command's: jobs have their own."""

_RUN: Final = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the job has something to close
__file__ = sys.argv[2]
sys.argv[:3] = [f"dafka job {sys.argv[1]}"]
with open(__file__, "rb") as script:
    code = compile(script.read(), __file__, "exec")
exec(code)
"""
"""Runs a job as ``__main__``, as spark-submit does: workers can import its functions from nowhere,
so Spark pickles them by value.  Its messages name the command that runs it."""


def job(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", show_default=False, help="A job; without it, a list."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENTS]", show_default=False, help="The job's own; --help lists them."
        ),
    ] = None,
    *,
    print_submit: Annotated[
        bool,
        typer.Option(
            _PRINT_SUBMIT, help="Print the command that runs the job with spark-submit instead."
        ),
    ] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Run a program for Spark that comes with the package, on this machine; or list them.

    Flags behind the name are the job's, as in 'dafka job topic_to_parquet --help'.
    """
    known = jobs()
    if name is None:
        rows = [(each, _purpose(script)) for each, script in known.items()]
        output.table(("job", "what it does"), rows, as_json=as_json, wrapped=("what it does",))
        return
    name = name.replace("-", "_")
    if name not in known:
        near = what_there_is(name, {*known}, "jobs, as package dafka_spark is not installed")
        raise typer.BadParameter(f"there is no job {quoted(name)} ({near})")
    given = [each for each in arguments or () if each != _PRINT_SUBMIT]
    if tower := options.get("tower"):
        given = [f"--tower={tower}", *given]
    if print_submit or _PRINT_SUBMIT in (arguments or ()):
        output.write(f"{_submitted(known[name], given)}\n".encode())
        return
    if find_spec("pyspark") is None:
        raise DafkaError(f"job {name} needs Spark: pip install 'pyspark>=4.3,<4.4', and Java 17")
    try:
        getpwuid(os.getuid())
    except KeyError:
        why = "add this user to /etc/passwd; Hadoop's libraries in Spark do not start without it"
        raise DafkaError(f"job {name} needs a name for user {os.getuid()}: {why}") from None
    # A process as Python starts it: without handlers and threads of this one.
    command = [sys.executable, "-P", "-c", _RUN, name, str(known[name]), *given]
    os.execv(sys.executable, command)  # noqa: S606


def jobs() -> dict[str, Path]:
    """Return the scripts by the names of their jobs; none of them is imported."""
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


def notebooks(
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            show_default=False,
            help="Where to copy them, which is made if need be; without it they are listed.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", show_default=False, help="Only these; all without."),
    ] = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of these names that are there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the notebooks of the package to a directory, or list them.

    Each starts a cluster of its own.
    """
    found = {name: path.read_bytes() for name, path in shipped_files("notebooks", _SUFFIX).items()}
    if directory is None:
        rows = [(name, _title(text)) for name, text in found.items()]
        output.table(("notebook", "about"), rows, as_json=as_json, wrapped=("about",))
        return
    if directory in found and not names and not Path(directory).exists():
        why = f"is a notebook; 'dafka notebooks . {directory}' copies it to this directory"
        raise ConfigError("dir", directory, why, "argument")
    asked = list(dict.fromkeys(name.removesuffix(_SUFFIX) for name in names or found))
    for name in asked:
        if name not in found:
            near = what_there_is(name, found, "notebooks")
            raise ConfigError("name", escape(name), f"is no notebook; {near}", "argument")
    paths = {name: Path(directory) / f"{name}{_SUFFIX}" for name in asked}
    there = [path.name for path in paths.values() if os.path.lexists(path)]
    if there and not force:
        why = f"has {', '.join(there)} already; --force replaces what is there"
        raise ConfigError("dir", escape(directory), why, "argument")
    try:
        make_directory(Path(directory))
        for name, path in paths.items():
            with open_new(path, replaces=force) as file:
                file.write(found[name])
    except OSError as error:
        why = f"cannot be written to: {error.strerror}"
        raise ConfigError("dir", escape(directory), why, "argument") from None
    output.table(("notebook", "file"), [(n, str(p)) for n, p in paths.items()], as_json=as_json)


def _title(text: bytes) -> str:
    import json

    [heading, *_] = json.loads(text)["cells"][0]["source"]
    return str(heading).strip("# \n")
