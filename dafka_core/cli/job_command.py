"""``dafka job``: programs for Spark that come with the package, listed and run.

They are in ``dafka_spark``, of which this package knows only the name: it reads what each says of
itself, and leaves the process to the one that is to run.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import shlex
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.list_commands import AsJson
from dafka_core.errors import DafkaError
from dafka_core.names import quoted
from dafka_core.near_names import what_there_is
from dafka_core.node_options import NodeOptions

_PACKAGE: Final = "dafka_spark"
_PRINT_SUBMIT: Final = "--print-submit"
_LOGGING: Final = "support/log4j2.properties"

OTHER_OPTIONS: Final = frozenset(row.name for row in NodeOptions.table()) - {"tower"}
"""Options of nodes that are not this command's: jobs have their own."""

_RUN: Final = """\
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the job has something to close
from dafka_spark.jobs.support.job_exit import run_named
run_named()
"""


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
        rows = [(each, _purpose(spec)) for each, spec in sorted(known.items())]
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
    # A process as Python starts it: without handlers and threads of this one.
    os.execv(sys.executable, [sys.executable, "-P", "-c", _RUN, name, *given])  # noqa: S606


def jobs() -> dict[str, ModuleSpec]:
    """The jobs by their names; nothing of them is imported."""
    package = find_spec(_PACKAGE)
    places = (package and package.submodule_search_locations) or ()
    folders = [str(Path(each) / "jobs") for each in places]
    found = {
        module.name: module.module_finder.find_spec(module.name, None)
        for module in pkgutil.iter_modules(folders)
        if not module.ispkg
    }
    return {name: spec for name, spec in found.items() if spec is not None}


def _purpose(spec: ModuleSpec) -> str:
    source = getattr(spec.loader, "get_source")(spec.name)  # noqa: B009 -- all loaders of files have it
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _submitted(spec: ModuleSpec, arguments: Sequence[str]) -> str:
    program = Path(spec.origin or "")
    logging = f"-Dlog4j2.configurationFile={(program.parent / _LOGGING).as_uri()}"
    command = ("spark-submit", "--driver-java-options", logging, str(program), *arguments)
    return shlex.join(command)
